// How fast mechanisms decode after contexts of several lengths.

#include <iomanip>
#include <iostream>
#include <memory>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include "longspan/base/interleaved.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/cli/value_list.h"
#include "longspan/models/language_model.h"

namespace longspan::cli {
namespace {

constexpr int64_t kIds = 257;  // of bytes
constexpr int64_t kWarm = 3;   // steps that are not timed

struct DecodeOptions {
  std::string mechanisms = "dense, linear, sliding", contexts = "256,16384";
  std::string device = "cpu", type = "float";
  TransformerOptions model = {};
  int64_t batch = 1, tokens = 32;
  bool json = false;
};

struct Decoded {
  double step = 0, prefill = 0;  // seconds
  int64_t state_bytes = 0;       // of all layers and examples, after the context
};

int64_t bytes_of(const Record& state) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state.all())
    bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  return bytes;
}

Decoded measured(const DecodeOptions& options, const Chosen& chosen, int64_t context) {
  const torch::Device device = usable_device(options.device);
  TransformerOptions made = options.model;
  Value::Map attention = chosen.settings;
  attention.insert_or_assign("name", chosen.name);
  made.attention = attention;
  if (find_mechanism(chosen.name).seam() == "stack") made.layers = 1;
  torch::manual_seed(1);
  LanguageModel model(made, kIds, context + kWarm + options.tokens,
                      LanguageModel::Sees::past);
  convert(model, device, options.type == "float" ? torch::kFloat : torch::kBFloat16);
  model.eval();

  const torch::NoGradGuard without_gradients;
  Record state;
  torch::Tensor ids = torch::randint(1, kIds, {options.batch, context}, torch::kLong);
  ids = ids.to(device);
  const auto read = [&] {
    return spent_on([&] {
             Pass pass;
             pass.state = &state;
             const auto x =
                 model.forward(ids, torch::ones_like(ids, torch::kBool), pass);
             ids = model.log_probabilities(x.slice(1, -1)).argmax(-1);
             if (device.is_cuda()) torch::cuda::synchronize();
           })
        .wall;
  };
  Decoded decoded{.prefill = read()};
  decoded.state_bytes = bytes_of(state);
  for (int64_t i = 0; i < kWarm; ++i) read();
  std::vector<double> steps;
  for (int64_t i = 0; i < options.tokens; ++i) steps.push_back(read());
  decoded.step = median(steps);
  return decoded;
}

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
            << std::setw(9) << "slower" << std::setw(14) << "state bytes"
            << std::setw(12) << "prefill s" << '\n';
}

void print(const DecodeOptions& options, const Chosen& chosen, int64_t context,
           const Decoded& decoded, double slower) {
  const double speed = static_cast<double>(options.batch) / decoded.step;
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"mechanism", shown(chosen)},
                                        {"context", context},
                                        {"batch", options.batch},
                                        {"tokens_per_second", speed},
                                        {"seconds_per_step", decoded.step},
                                        {"state_bytes", decoded.state_bytes},
                                        {"prefill_seconds", decoded.prefill}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << std::left << std::setw(32) << shown(chosen) << std::right << std::fixed
            << std::setw(9) << context << std::setprecision(1) << std::setw(12) << speed
            << std::setprecision(2) << std::setw(10) << 1e3 * decoded.step
            << std::setw(9) << slower << std::setw(14) << decoded.state_bytes
            << std::setw(12) << decoded.prefill << std::defaultfloat << std::endl;
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
  for (const Chosen& chosen : mechanisms) {
    double first = 0;
    for (const int64_t context : contexts) {
      const auto refused = [&](const std::string& reason) {
        std::cerr << shown(chosen) << " at " << context << ": " << reason << '\n';
      };
      try {
        const Decoded decoded = measured(options, chosen, context);
        if (first == 0) first = decoded.step;
        print(options, chosen, context, decoded, decoded.step / first);
        any = true;
      } catch (const Error& error) {
        refused(error.what());
      } catch (const c10::Error& error) {
        const std::string reason = error.what_without_backtrace();
        refused(reason.substr(0, reason.find('\n')));
      }
    }
  }
  if (!any) throw Failed();
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  auto* const verb = bench.add_subcommand(
      "decode",
      "language models that make one token at a time after a context: tokens a second, "
      "how much slower than after the shortest context, and the bytes of the state");
  verb->footer(
      "The models are new, over bytes; each mechanism reads the context at once, then "
      "makes\n3 tokens that are not timed, and --tokens that are.\n\n"
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
