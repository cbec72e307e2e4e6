// Figure 3 of Ren et al. 2021, arXiv:2107.05768: time and memory of one attention layer
// over lengths, of Combiner, of the sparse patterns it completes, and of others.

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include <c10/util/Exception.h>

#include "longspan/base/memory.h"
#include "longspan/base/whole_file.h"
#include "longspan/cli/arguments.h"
#include "longspan/cli/attention_report.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/cli/paper.h"
#include "longspan/cli/paper_table.h"

namespace longspan::cli {
namespace {

using nlohmann::ordered_json;
using report::Chart, report::Panel, report::Scale, report::Series;

struct FigureOptions {
  std::string lengths = "1024,2048,4096,8192,16384", device = "cpu", type = "float",
              plot;
  AttentionSetup setup = {.batch = 16};
  int64_t span = 128, turns = 3;
  std::optional<int64_t> dense_until = {};  // unset: all on a GPU, 8192 elsewhere
  bool json = false;
};

// One line of the figure: a mechanism and, of a Combiner, the sparse pattern whose
// tokens it sees directly.
struct Contender {
  Candidate candidate;
  const Mechanism* sparse = nullptr;
  Value::Map sparse_settings = {};
  double most_ratio = 0;           // to the sparse pattern, as aimed at; 0: none
  double most_exponent = 0;        // of time over length; 0: none
  std::string called = {};         // where it is measured as another mechanism
  std::vector<Spent> ratios = {};  // ours / sparse, for each of candidate.speeds
  std::string refused = {};        // at the lengths without speeds

  bool has_projections() const { return candidate.mechanism.seam() != "attention"; }
  std::string name() const {
    if (!called.empty()) return called;
    return candidate.name() + (has_projections() ? " with projections" : "");
  }
};

// The patterns are of blocks, or of rows of a grid, of `span` tokens.
std::vector<Contender> contenders(int64_t span) {
  const Value::Map grid = {{"width", Value(span)}}, axial = {{"columns", Value(span)}},
                   fixed = {{"stride", Value(span)},
                            {"summary", Value(int64_t{1})},
                            {"heads", Value(std::string("merged"))}};
  const auto alone = [](const Mechanism& row, Value::Map given = {}) {
    return Contender{.candidate = {.mechanism = row, .given = std::move(given)}};
  };
  const auto beside = [](const Mechanism& row, Value::Map given,
                         const Mechanism& sparse, const Value::Map& sparse_settings,
                         double ratio, double exponent) {
    return Contender{.candidate = {.mechanism = row, .given = std::move(given)},
                     .sparse = &sparse,
                     .sparse_settings = sparse_settings,
                     .most_ratio = ratio,
                     .most_exponent = exponent};
  };
  const auto on_grid = [&](const Mechanism& row, Value::Map given, double ratio) {
    return beside(row, std::move(given), catalogue::sparse_axial, axial, ratio, 1.6);
  };
  const Value::Map blocks = {{"span", Value(span)}};
  // With a plain summary of a row it is combiner_fixed, which has no projections.
  Contender plain_rows = on_grid(catalogue::combiner_fixed, blocks, 1.8);
  plain_rows.called = "combiner_axial_rowmajor {summary: none}";
  return {alone(catalogue::dense),
          alone(catalogue::performer),
          alone(catalogue::bigbird),
          alone(catalogue::logsparse),
          alone(catalogue::sparse_fixed, fixed),
          alone(catalogue::sparse_axial, axial),
          beside(catalogue::combiner_logsparse, {}, catalogue::logsparse, {}, 1.3, 1.2),
          beside(catalogue::combiner_fixed, blocks, catalogue::sparse_fixed, fixed, 1.3,
                 1.6),
          plain_rows,
          on_grid(catalogue::combiner_axial_rowmajor, grid, 0),
          on_grid(catalogue::combiner_axial_vertical, grid, 0),
          on_grid(catalogue::combiner_axial_horizontal, grid, 0),
          on_grid(catalogue::combiner_mixture, grid, 0)};
}

std::string sparse_name(const Contender& contender) {
  return Candidate{.mechanism = *contender.sparse, .given = contender.sparse_settings}
      .name();
}

void measure(Contender& contender, int64_t length, const FigureOptions& options) {
  Candidate& candidate = contender.candidate;
  AttentionSpeed speed{.length = length};
  if (candidate.is_dense() && options.dense_until && length > *options.dense_until &&
      !candidate.speeds.empty()) {
    const AttentionSpeed& last = candidate.speeds.back();
    const double longer =
        static_cast<double>(length) / static_cast<double>(last.length);
    speed.ours = {longer * longer * last.ours.wall, longer * longer * last.ours.cpu};
    speed.extrapolated = true;
    candidate.speeds.push_back(speed);
    return;
  }
  const Form form = contender.has_projections() ? Form::tokens : Form::heads;
  release_cached_memory();
  AttentionLayer ours(candidate.mechanism, candidate.given, form, length,
                      options.setup);
  speed.peak_bytes = ours.peak_bytes();
  if (contender.sparse) {
    AttentionLayer sparse(*contender.sparse, contender.sparse_settings, form, length,
                          options.setup);
    const Interleaved times = timed(ours, sparse, options.turns);
    speed.ours = times.ours;
    contender.ratios.push_back({1 / times.ratio.wall, 1 / times.ratio.cpu});
  } else {
    speed.ours = timed(ours, options.turns);
  }
  candidate.speeds.push_back(speed);
}

double largest_ratio(const Contender& contender) {
  double most = 0;
  for (const Spent& ratio : contender.ratios) most = std::max(most, ratio.wall);
  return most;
}

std::string verdict(double value, double most) {
  if (most == 0) return "-";
  return (value <= most ? "within " : "beyond ") + cell(most, 1);
}

void print_tables(const std::vector<Contender>& all, const std::set<int64_t>& lengths) {
  const auto table = [&](const std::string& heading,
                         const std::vector<std::string>& others, const auto& entry,
                         const auto& rest, bool with_sparse) {
    TextTable lines = {{heading}};
    for (const int64_t length : lengths) lines[0].push_back(std::to_string(length));
    lines[0].insert(lines[0].end(), others.begin(), others.end());
    for (const Contender& contender : all) {
      if (with_sparse != (contender.sparse != nullptr) && with_sparse) continue;
      const auto& speeds = contender.candidate.speeds;
      auto& line = lines.emplace_back();
      line.push_back(contender.name() +
                     (with_sparse ? " / " + sparse_name(contender) : ""));
      for (const int64_t length : lengths) {
        const auto found = std::ranges::find(speeds, length, &AttentionSpeed::length);
        line.push_back(
            found == speeds.end()
                ? "-"
                : entry(contender, static_cast<size_t>(found - speeds.begin())));
      }
      const auto ends = rest(contender);
      line.insert(line.end(), ends.begin(), ends.end());
    }
    print_table(lines);
    std::cout << '\n';
  };
  const auto exponent = [](const std::optional<double>& known) {
    return known ? "N^" + cell(*known, 2) : std::string("-");
  };
  table(
      "milliseconds", {"grows as", "exponent"},
      [](const Contender& one, size_t at) {
        const AttentionSpeed& speed = one.candidate.speeds[at];
        return (speed.extrapolated ? "~" : "") + cell(1e3 * speed.ours.wall, 2);
      },
      [&](const Contender& one) -> std::vector<std::string> {
        const auto known = growth(one.candidate.speeds).time;
        return {exponent(known), known ? verdict(*known, one.most_exponent) : "-"};
      },
      false);
  table(
      "MB beside the input", {"grows as"},
      [](const Contender& one, size_t at) -> std::string {
        const int64_t bytes = one.candidate.speeds[at].peak_bytes;
        return bytes > 0 ? cell(static_cast<double>(bytes) / 1e6, 1) : "-";
      },
      [&](const Contender& one) -> std::vector<std::string> {
        return {exponent(growth(one.candidate.speeds).memory)};
      },
      false);
  table(
      "times of the sparse pattern", {"at most"},
      [](const Contender& one, size_t at) { return cell(one.ratios[at].wall, 2); },
      [&](const Contender& one) -> std::vector<std::string> {
        return {verdict(largest_ratio(one), one.most_ratio)};
      },
      true);
  for (const Contender& contender : all)
    if (!contender.refused.empty())
      std::cout << contender.name() << ": " << contender.refused << '\n';
}

ordered_json if_set(double limit) {
  return limit > 0 ? ordered_json(limit) : ordered_json();
}

ordered_json json(const Contender& contender, const FigureOptions& options) {
  const Candidate& candidate = contender.candidate;
  const AttentionSetup& setup = options.setup;
  ordered_json line = {{"mechanism", candidate.mechanism.name},
                       {"name", contender.name()},
                       {"causal", setup.causal},
                       {"backward", setup.backward},
                       {"batch", setup.batch},
                       {"heads", setup.heads},
                       {"head_width", setup.head_width},
                       {"type", options.type},
                       {"device", setup.device.str()}};
  line["sparse"] =
      contender.sparse ? ordered_json(sparse_name(contender)) : ordered_json();
  auto cells = ordered_json::array();
  for (size_t i = 0; i < candidate.speeds.size(); ++i) {
    const AttentionSpeed& speed = candidate.speeds[i];
    ordered_json entry = {
        {"length", speed.length},
        {"seconds", speed.ours.wall},
        {"cpu_seconds", speed.ours.cpu},
        {"extrapolated", speed.extrapolated},
        {"peak_bytes",
         speed.extrapolated ? ordered_json() : ordered_json(speed.peak_bytes)}};
    if (contender.sparse) {
      entry["ratio"] = contender.ratios[i].wall;
      entry["cpu_ratio"] = contender.ratios[i].cpu;
    }
    cells.push_back(entry);
  }
  line["cells"] = cells;
  const Growth known = growth(candidate.speeds);
  line["time_exponent"] = or_null(known.time);
  line["memory_exponent"] = or_null(known.memory);
  line["most_exponent"] = if_set(contender.most_exponent);
  line["most_ratio"] = if_set(contender.most_ratio);
  if (!contender.refused.empty()) line["refused"] = contender.refused;
  return line;
}

Chart chart(const FigureOptions& options, const std::vector<Contender>& all) {
  std::vector<Series> times, bytes;
  std::vector<double> lengths;
  for (const Contender& contender : all) {
    Series time{.name = contender.name(), .dashed = contender.candidate.is_dense()};
    Series memory = time;
    for (const AttentionSpeed& speed : contender.candidate.speeds) {
      const auto length = static_cast<double>(speed.length);
      if (contender.candidate.is_dense()) lengths.push_back(length);
      time.points.push_back({length, 1e3 * speed.ours.wall, speed.extrapolated});
      memory.points.push_back({length, static_cast<double>(speed.peak_bytes) / 1e6});
    }
    if (time.points.empty()) continue;
    times.push_back(time);
    bytes.push_back(memory);
  }
  const auto panel = [&](const char* title, const char* unit,
                         const std::vector<Series>& series) {
    return Panel{
        .title = title,
        .x = {.label = "tokens", .scale = Scale::logarithmic, .ticks = lengths},
        .y = {.label = unit, .scale = Scale::logarithmic},
        .series = series};
  };
  return {.title = "Combiner, the patterns it completes, and others",
          .note = words(options.setup) + "; hollow: extrapolated as N^2",
          .panels = {panel("Time", "milliseconds", times),
                     panel("Peak memory beside the input", "MB", bytes)}};
}

void figure(FigureOptions options) {
  const auto lengths =
      argument([&] { return lengths_of("--lengths", options.lengths); });
  options.setup.device = argument([&] { return usable_device(options.device); });
  if (!options.dense_until && !options.setup.device.is_cuda())
    options.dense_until = 8192;
  options.setup.type = options.type == "float" ? torch::kFloat : torch::kBFloat16;
  if (!options.plot.empty()) check_writable(options.plot);
  std::vector<Contender> all = contenders(options.span);
  if (!options.json)
    std::cout << words(options.setup) << "; blocks and rows of " << options.span
              << " tokens\n\n";
  bool failed = false;
  for (Contender& contender : all) {
    contender.refused = refusal(contender.candidate.mechanism, options.setup);
    if (contender.refused.empty()) {
      for (const int64_t length : lengths) {
        try {
          measure(contender, length, options);
        } catch (const Error& error) {
          contender.refused = error.what();
        } catch (const c10::Error& error) {
          const std::string reason = error.what_without_backtrace();
          contender.refused = reason.substr(0, reason.find('\n'));
          failed = true;
        }
      }
    }
    if (options.json) std::cout << json(contender, options).dump() << std::endl;
  }
  if (!options.json) print_tables(all, lengths);
  if (!options.plot.empty())
    write_whole(options.plot, report::svg(chart(options, all)));
  if (failed) throw Failed();
}

}  // namespace

void add_combiner_figure3(CLI::App& paper) {
  auto* const verb = paper.add_subcommand(
      "combiner-figure3",
      "figure 3 of Ren et al. 2021, arXiv:2107.05768: time and memory of one attention "
      "layer over lengths, Combiner beside the sparse patterns it completes and "
      "others");
  verb->footer(
      "The figure's setting is the standard one: inference, batch 16, 8 heads of 64,\n"
      "lengths 1024 to 16384. Combiner is timed in turn with its sparse pattern, "
      "which\n"
      "sees the same tokens directly: one softmax over a block and a column for each\n"
      "block, over a row and a column of the grid, or over about log N tokens. What "
      "has\n"
      "projections of its own (combiner_axial_rowmajor) is timed with them, and then "
      "its\n"
      "sparse pattern between projections as well. Times are medians over the "
      "turns.\n\n"
      "Examples:\n"
      "  longspan paper combiner-figure3 --batch 2 --lengths 1024,2048,4096\n"
      "  longspan paper combiner-figure3 --device cuda --causal --plot figure3.svg");
  const auto options = std::make_shared<FigureOptions>();
  verb->add_option("--lengths", options->lengths, "tokens, separated by commas")
      ->capture_default_str();
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
  count("--span", options->span, "tokens of a block and of a row of the grid");
  count("--turns", options->turns, "how often each is timed");
  verb->add_option(
          "--dense-until", options->dense_until,
          "tokens: dense attention over more is not timed, but extrapolated as "
          "N^2 from the longest that was, and marked ~; 8192 unless on a GPU")
      ->check(CLI::Range(int64_t{1}, kLongest));
  verb->add_option("--type", options->type, "float or bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float", "bfloat16"}));
  verb->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  verb->add_flag("--json", options->json, "a line of JSON for each mechanism");
  verb->add_option("--plot", options->plot, "a picture of time and memory, as SVG");
  add_threads(*verb);
  verb->callback([=] { figure(*options); });
}

}  // namespace longspan::cli
