// How fast mechanisms decode after contexts of several lengths.

#include <algorithm>
#include <bit>
#include <iomanip>
#include <iostream>
#include <memory>
#include <set>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include "longspan/base/interleaved.h"
#include "longspan/cli/arguments.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/models/language_model.h"

namespace longspan::cli {
namespace {

using torch::Tensor;

constexpr int64_t kIds = 257;  // of bytes
constexpr int64_t kWarm = 3;   // steps that are not timed
constexpr int64_t kLargestBlock = 1024;

struct DecodeOptions {
  std::string mechanisms = "dense, linear, sliding", contexts = "256,16384";
  std::string device = "cpu", type = "float";
  TransformerOptions model = {};
  int64_t batch = 1, tokens = 32;
  bool json = false;
};

int64_t bytes_of(const Record& state) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state.all())
    bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  return bytes;
}

// A model that has read its context and makes one token after the other.
class Decoding {
 public:
  Decoding(const DecodeOptions& options, const Chosen& chosen, int64_t context)
      : context_(context), device_(usable_device(options.device)) {
    TransformerOptions made = options.model;
    Value::Map attention = chosen.settings;
    attention.insert_or_assign("name", chosen.name);
    made.attention = attention;
    if (find_mechanism(chosen.name).seam() == "stack") made.layers = 1;
    torch::manual_seed(1);
    model_ = std::make_unique<LanguageModel>(
        made, kIds, context + kWarm + options.tokens, LanguageModel::Sees::past);
    convert(*model_, device_,
            options.type == "float" ? torch::kFloat : torch::kBFloat16);
    model_->eval();
    const Tensor ids =
        torch::randint(1, kIds, {options.batch, context}, torch::kLong).to(device_);
    // Before the token with which blocks end, their state is largest.
    const int64_t block =
        std::min(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(context))),
                 kLargestBlock);
    const int64_t first = context / block * block - 1;
    if (first > 0) prefill_ += read(ids.slice(1, 0, first)).wall;
    prefill_ += read(ids.slice(1, first)).wall;
  }

  void step(bool is_timed) {
    const Spent spent = read(next_);
    if (is_timed) steps_.push_back(spent);
  }

  int64_t context() const { return context_; }
  double prefill() const { return prefill_; }         // seconds
  int64_t most_bytes() const { return most_bytes_; }  // of all layers and examples
  const std::vector<Spent>& steps() const { return steps_; }

 private:
  Spent read(const Tensor& ids) {
    const torch::NoGradGuard without_gradients;
    const Spent spent = spent_on([&] {
      Pass pass;
      pass.state = &state_;
      const auto x = model_->forward(ids, torch::ones_like(ids, torch::kBool), pass);
      next_ = model_->log_probabilities(x.slice(1, -1)).argmax(-1);
      if (device_.is_cuda()) torch::cuda::synchronize();
    });
    most_bytes_ = std::max(most_bytes_, bytes_of(state_));
    return spent;
  }

  int64_t context_;
  torch::Device device_;
  std::unique_ptr<LanguageModel> model_;
  Record state_;
  Tensor next_;  // [B, 1]
  double prefill_ = 0;
  int64_t most_bytes_ = 0;
  std::vector<Spent> steps_;
};

std::string shown(const Chosen& chosen) {
  return chosen.settings.empty() ? chosen.name
                                 : chosen.name + " " + Value(chosen.settings).text();
}

void print_head(const DecodeOptions& options) {
  const TransformerOptions& model = options.model;
  std::cout << model.layers << " layers of " << model.embedding << ", " << model.heads
            << " heads, positions: " << model.positions << "; batch " << options.batch
            << ", " << options.type << " on " << options.device << ", "
            << at::get_num_threads() << " threads; median of " << options.tokens
            << " steps\n"
            << std::left << std::setw(32) << "mechanism" << std::right << std::setw(9)
            << "context" << std::setw(12) << "tokens/s" << std::setw(10) << "ms/step"
            << std::setw(9) << "slower" << std::setw(10) << "CPU ms" << std::setw(14)
            << "state bytes" << std::setw(12) << "prefill s" << '\n';
}

// Turn by turn, in the middle.
double slower(const Decoding& one, const Decoding& first) {
  std::vector<double> ratios;
  for (size_t turn = 0; turn < one.steps().size(); ++turn)
    ratios.push_back(one.steps()[turn].wall / first.steps()[turn].wall);
  return median(ratios);
}

void print(const DecodeOptions& options, const Chosen& chosen, const Decoding& one,
           const Decoding& first) {
  const Spent step = medians(one.steps());
  const double speed = static_cast<double>(options.batch) / step.wall;
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"mechanism", shown(chosen)},
                                        {"context", one.context()},
                                        {"batch", options.batch},
                                        {"tokens_per_second", speed},
                                        {"seconds_per_step", step.wall},
                                        {"slower", slower(one, first)},
                                        {"cpu_seconds_per_step", step.cpu},
                                        {"state_bytes", one.most_bytes()},
                                        {"prefill_seconds", one.prefill()}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << std::left << std::setw(32) << shown(chosen) << std::right << std::fixed
            << std::setw(9) << one.context() << std::setprecision(1) << std::setw(12)
            << speed << std::setprecision(2) << std::setw(10) << 1e3 * step.wall
            << std::setw(9) << slower(one, first) << std::setw(10) << 1e3 * step.cpu
            << std::setw(14) << one.most_bytes() << std::setw(12) << one.prefill()
            << std::defaultfloat << std::endl;
}

// The contexts in turn: machines are shared and clocks move, so only their ratio means
// something. One that fails is left out. Returns whether there was any that did not.
bool decode(const DecodeOptions& options, const Chosen& chosen,
            const std::set<int64_t>& contexts) {
  const auto is_done = [&](int64_t context, const auto& work) {
    const auto refused = [&](const std::string& reason) {
      std::cerr << shown(chosen) << " at " << context << ": " << reason << '\n';
    };
    try {
      work();
      return true;
    } catch (const Error& error) {
      refused(error.what());
    } catch (const c10::Error& error) {
      const std::string reason = error.what_without_backtrace();
      refused(reason.substr(0, reason.find('\n')));
    }
    return false;
  };
  std::vector<std::unique_ptr<Decoding>> all;
  for (const int64_t context : contexts)
    is_done(context, [&] {
      all.push_back(std::make_unique<Decoding>(options, chosen, context));
    });
  for (int64_t turn = -kWarm; turn < options.tokens; ++turn)
    std::erase_if(all, [&](const auto& one) {
      return !is_done(one->context(), [&] { one->step(/*is_timed=*/turn >= 0); });
    });
  if (all.empty()) return false;
  for (const auto& one : all) print(options, chosen, *one, *all.front());
  return true;
}

void bench_decode(const DecodeOptions& options) {
  const auto contexts =
      argument([&] { return lengths_of("--contexts", options.contexts); });
  const auto mechanisms = argument([&] {
    std::vector<Chosen> found;
    for (const Value& value : list_of("--mechanisms", options.mechanisms)) {
      found.push_back(Chosen::from(value, "--mechanisms"));
      const Mechanism& row = find_mechanism(found.back().name);
      Settings::complete(row.name, row.settings, found.back().settings);
    }
    return found;
  });
  argument([&] { return usable_device(options.device); });
  if (!options.json) print_head(options);
  bool any = false;
  for (const Chosen& chosen : mechanisms)
    any = decode(options, chosen, contexts) || any;
  if (!any) throw Failed();
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  auto* const verb = bench.add_subcommand(
      "decode",
      "language models that make one token at a time after a context: tokens a second, "
      "how much slower than after the shortest context, the CPU time of all threads, "
      "and "
      "the most bytes of the state");
  verb->footer(
      "The models are new, over bytes; each mechanism reads the context at once, then "
      "makes\n3 tokens that are not timed, and --tokens that are, the contexts in "
      "turn.\n\n"
      "Examples:\n"
      "  longspan bench decode --contexts 256,16384\n"
      "  longspan bench decode --mechanisms 'rfa, {name: sliding, window: 64}' --json");
  const auto options = std::make_shared<DecodeOptions>();
  options->model.dropout = 0;
  verb->add_option("--mechanisms", options->mechanisms,
                   "names separated by commas; {name: NAME, SETTING: VALUE} for other "
                   "than standard settings")
      ->capture_default_str();
  verb->add_option("--contexts", options->contexts, "tokens, separated by commas")
      ->capture_default_str();
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    verb->add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLongest));
  };
  count("--tokens", options->tokens, "steps that are timed");
  count("--batch", options->batch, "sequences at once");
  count("--layers", options->model.layers, "layers; 1 for a stack");
  count("--embedding", options->model.embedding, "width of the model");
  count("--heads", options->model.heads, "heads");
  verb->add_option("--positions", options->model.positions, "as model.positions")
      ->capture_default_str()
      ->check(
          CLI::IsMember({"sinusoidal", "learned", "rotary", "alibi", "t5", "none"}));
  verb->add_option("--type", options->type, "float or bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float", "bfloat16"}));
  verb->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  verb->add_flag("--json", options->json, "a line of JSON for each");
  add_threads(*verb);
  verb->callback([=] { bench_decode(*options); });
}

}  // namespace longspan::cli
