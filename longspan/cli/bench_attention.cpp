// Mechanisms beside dense attention, over sequences of several lengths.

#include <filesystem>
#include <memory>
#include <set>

#include <c10/util/Exception.h>

#include "longspan/base/whole_file.h"
#include "longspan/cli/attention_report.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/cli/value_list.h"

namespace longspan::cli {
namespace {

struct AttentionOptions {
  std::string mechanisms, lengths = "512,1024,2048,4096", preset, plot;
  std::string device = "cpu", type = "float";
  AttentionSetup setup = {};
  Turns turns = {};
  bool json = false;
};

std::vector<Candidate> candidates(const AttentionOptions& options) {
  std::vector<Candidate> found;
  for (const Value& value : list_of("--mechanisms", options.mechanisms)) {
    auto [name, given] = Chosen::from(value, "--mechanisms");
    const Mechanism& row = find_mechanism(name);
    require(row.seam() != "feed_forward", row.name,
            ": is a feed_forward, which cannot be measured beside dense attention");
    if (!options.preset.empty()) given.merge(preset(row, options.preset));
    const auto complete = Settings::complete(row.name, row.settings, given);
    found.push_back({row, given, complete.values()});
  }
  return found;
}

// Why a mechanism cannot be measured at all; "" if it can.
std::string refusal(const Mechanism& mechanism, const AttentionSetup& setup) {
  if (setup.causal && mechanism.can.causal == Causal::never)
    return "has no causal form; leave out --causal";
  if (!setup.causal && mechanism.can.causal == Causal::always)
    return "has only a causal form; give --causal";
  return "";
}

// Fails now rather than after the measurements.
void check_writable(const std::string& path) {
  require(!std::filesystem::is_directory(path), "cannot write ", path,
          ": Is a directory");
  const WholeFile never_committed(path);
}

void measure(Candidate& candidate, const std::set<int64_t>& lengths,
             const AttentionOptions& options, const AttentionReport& report) {
  if (const auto reason = refusal(candidate.mechanism, options.setup);
      !reason.empty()) {
    report.refused(candidate, 0, reason);
    return;
  }
  AttentionBench bench(candidate.mechanism, candidate.given, options.setup,
                       options.turns);
  for (const int64_t length : lengths) {
    try {
      candidate.speeds.push_back(bench.measured(length));
      report.speed(candidate);
    } catch (const Error& error) {
      report.refused(candidate, length, error.what());
    } catch (const c10::Error& error) {
      const std::string reason = error.what_without_backtrace();
      report.refused(candidate, length, reason.substr(0, reason.find('\n')));
    }
  }
  if (!candidate.speeds.empty()) report.growth(candidate);
}

void bench_attention(AttentionOptions options) {
  const auto all_lengths =
      argument([&] { return lengths_of("--lengths", options.lengths); });
  auto measured = argument([&] { return candidates(options); });
  options.setup.device = argument([&] { return usable_device(options.device); });
  options.setup.type = options.type == "float" ? torch::kFloat : torch::kBFloat16;
  if (!options.plot.empty()) check_writable(options.plot);
  const AttentionReport report(
      options.setup, measured,
      options.json ? AttentionReport::Style::json : AttentionReport::Style::table);
  bool any = false;
  for (Candidate& candidate : measured) {
    measure(candidate, all_lengths, options, report);
    any = any || !candidate.speeds.empty();
  }
  if (!any) throw Failed();
  if (!options.plot.empty())
    write_whole(options.plot, svg(attention_chart(options.setup, measured)));
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto* const verb = bench.add_subcommand(
      "attention",
      "mechanisms on random sequences, each in turn with this library's own dense "
      "attention at the same length: time, FLOPs, memory, how they grow with the "
      "length, and from which length on a mechanism is faster");
  verb->footer(
      "Times are medians over the turns; a ratio above 1 is faster than dense. GFLOP\n"
      "are of the forward pass; with --backward GFLOP/s count 3.5 times as many, as\n"
      "softmax attention needs. Memory is the most that the tensors of a pass take at\n"
      "once beside its input, not counting what earlier passes left for later ones,\n"
      "such as layouts. A mechanism that fills the seam mixer is run on x [B, N, E],\n"
      "and dense attention then between projections; beside a stack stand as many "
      "blocks\n"
      "of dense attention, with their feed-forwards, as it runs.\n\n"
      "Examples:\n"
      "  longspan bench attention --mechanisms dense --lengths 512,1024,2048 --causal\n"
      "  longspan bench attention --lengths 1024,4096,16384,65536 --backward \\\n"
      "    --mechanisms 'sliding, {name: sliding, window: 64}' --plot speed.svg\n"
      "  longspan bench attention --mechanisms dense --threads 1 --json > dense.jsonl");
  const auto options = std::make_shared<AttentionOptions>();
  verb->add_option("--mechanisms", options->mechanisms,
                   "names separated by commas; {name: NAME, SETTING: VALUE} for other "
                   "than standard settings")
      ->required();
  verb->add_option("--lengths", options->lengths, "tokens, separated by commas")
      ->capture_default_str();
  verb->add_option("--preset", options->preset,
                   "published settings of this name, for every mechanism");
  verb->add_flag("--causal", options->setup.causal, "no token sees later ones");
  verb->add_flag("--backward", options->setup.backward, "with the gradients");
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    verb->add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLongest));
  };
  count("--batch", options->setup.batch, "sequences");
  count("--heads", options->setup.heads, "heads");
  count("--head-width", options->setup.head_width, "width of a head");
  count("--turns", options->turns.count, "how often each pair is timed");
  count("--dense-until", options->turns.dense_until,
        "tokens: dense attention over more is not timed, but extrapolated as N^2 from "
        "the longest that was, and marked ~");
  verb->add_option("--global", options->setup.global,
                   "first tokens that see and are seen by all, where a mechanism has "
                   "global tokens")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kLongest));
  verb->add_option("--type", options->type, "float or bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float", "bfloat16"}));
  verb->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  verb->add_flag("--json", options->json,
                 "a line of JSON for each mechanism and length, then one for each "
                 "mechanism");
  verb->add_option("--plot", options->plot, "a picture of time and memory, as SVG");
  add_threads(*verb);
  verb->callback([=] { bench_attention(*options); });
}

}  // namespace longspan::cli
