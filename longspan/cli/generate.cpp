#include <algorithm>
#include <iostream>
#include <memory>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "longspan/cli/commands.h"
#include "longspan/cli/given_texts.h"
#include "longspan/models/generate.h"
#include "longspan/train/experiment.h"

namespace longspan::cli {
namespace {

struct GenerateCommand {
  std::string run, checkpoint = "best", device;
  GivenTexts given;
  GenerateOptions options = {.tokens = 0};
  std::vector<std::string> stops;  // texts
  int64_t samples = 1, batch = 16;
  bool json = false;
};

constexpr int64_t kUsualTokens = 200;

// What is known of one continuation while it is made.
struct Progress {
  std::string prompt;
  std::vector<int32_t> ids;  // of the prompt, then of the continuation
  size_t prompt_ids = 0;
  std::string text = {};  // of the continuation
};

std::vector<int32_t> ids_of(const Task& task, const std::string& prompt,
                            size_t number) {
  std::vector<int32_t> ids;
  try {
    if (!prompt.empty()) ids = task.encode(prompt);
  } catch (const Error& error) {
    fail("prompt ", number + 1, ": ", error.what());
  }
  if (ids.empty() && task.end_of_text >= 0) ids.push_back(task.end_of_text);
  require(!ids.empty(), "prompt ", number + 1,
          " is empty, but the model has no token that stands before a text; give it ",
          "words to begin with");
  return ids;
}

// The text of a continuation so far, up to the end of a text that stops it.
class Texts {
 public:
  Texts(const Task& task, const std::vector<std::string>& stops)
      : task_(task), stops_(stops) {}

  // With one more token. Returns whether it goes on.
  bool add(Progress& progress, int64_t id) const {
    progress.ids.push_back(static_cast<int32_t>(id));
    const std::span<const int32_t> all = progress.ids;
    const std::string before = task_.decode(all.first(progress.prompt_ids)),
                      whole = task_.decode(all);
    progress.text = whole.starts_with(before)
                        ? whole.substr(before.size())
                        : task_.decode(all.subspan(progress.prompt_ids));
    size_t end = std::string::npos;
    for (const std::string& stop : stops_)
      if (const size_t at = progress.text.find(stop); at != std::string::npos)
        end = std::min(end, at + stop.size());
    if (end == std::string::npos) return true;
    progress.text.resize(end);
    return false;
  }

 private:
  const Task& task_;
  const std::vector<std::string>& stops_;
};

// How much of a text stays as it is: bytes at its end that are no character yet may
// become one.
size_t settled(std::string_view text) {
  constexpr std::string_view kNone = "\uFFFD";
  while (text.ends_with(kNone)) text.remove_suffix(kNone.size());
  return text.size();
}

void print_json(const Progress& progress, const Continuation& made) {
  nlohmann::ordered_json line = {{"prompt", progress.prompt}, {"text", progress.text}};
  double sum = 0;
  line["ids"] = nlohmann::ordered_json::array();
  line["log_probabilities"] = nlohmann::ordered_json::array();
  for (const NewToken& token : made.tokens) {
    line["ids"].push_back(token.id);
    line["log_probabilities"].push_back(token.log_probability);
    sum += token.log_probability;
  }
  line["log_probability"] = sum;
  line["end"] = made.stopped ? "stop" : "length";
  std::cout << line.dump(-1, ' ', false,
                         nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
}

void run(GenerateCommand command) {
  TrainedModel trained = open_run(command.run, command.checkpoint, command.device);
  const Task& task = trained.task;
  require(task.goal == Goal::next_token, command.run, " is a run of the task ",
          task.name, ", whose model continues no text; `longspan predict` asks it");
  const auto prompts = command.given.none() ? std::vector<std::string>(1)
                                            : command.given.read(task.text_column);
  require(!prompts.empty(), "there is no prompt in the file");
  LanguageModel& model = *trained.model.language;
  GenerateOptions& options = command.options;
  options.carry = &trained.carry;
  if (task.end_of_text >= 0) options.stops.push_back(task.end_of_text);
  if (task.unwritten >= 0) options.never.push_back(task.unwritten);

  std::vector<Progress> all;
  size_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto ids = ids_of(task, prompts[i], i);
    longest = std::max(longest, ids.size());
    for (int64_t sample = 0; sample < command.samples; ++sample)
      all.push_back({.prompt = prompts[i], .ids = ids, .prompt_ids = ids.size()});
  }
  if (options.tokens == 0) {
    const int64_t room = model.longest() - static_cast<int64_t>(longest);
    options.tokens =
        options.beyond ? kUsualTokens : std::clamp(room, int64_t{1}, kUsualTokens);
  }

  // One continuation is printed while it is made.
  const bool streams = !command.json && all.size() == 1;
  const Texts texts(task, command.stops);
  bool began = false;
  size_t shown = 0;
  const auto show = [&](std::string_view text) {
    if (text.size() <= shown) return;
    std::cout << text.substr(shown) << std::flush;
    shown = text.size();
  };
  for (size_t first = 0; first < all.size();) {
    const size_t end = std::min(first + static_cast<size_t>(command.batch), all.size());
    std::vector<std::vector<int32_t>> batch;
    for (size_t i = first; i < end; ++i) batch.push_back(all[i].ids);
    options.first_number = static_cast<int64_t>(first);
    const auto made =
        generate(model, batch, options, [&](int64_t prompt, const NewToken& token) {
          Progress& progress = all[first + static_cast<size_t>(prompt)];
          if (streams && !std::exchange(began, true)) std::cout << progress.prompt;
          // The end of a text is no part of it.
          if (token.id == task.end_of_text) return true;
          const bool goes_on = texts.add(progress, token.id);
          if (streams)
            show(std::string_view(progress.text).substr(0, settled(progress.text)));
          return goes_on;
        });
    for (size_t i = first; i < end && !streams; ++i)
      print_json(all[i], made[i - first]);
    first = end;
  }
  if (!streams) return;
  show(all[0].text);
  std::cout << '\n';
}

}  // namespace

void add_generate(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "generate", "continues texts with a trained language model, token by token");
  verb->footer(
      "One continuation is printed as text while it is made; several, or one with\n"
      "--json, as a line of JSON each, with the log-probabilities of its tokens.\n"
      "Without a prompt a text is made from its beginning.\n\n"
      "Examples:\n"
      "  longspan generate runs/bytes \"It was\" --tokens 300\n"
      "  longspan generate runs/bytes \"It was\" --temperature 0.8 --top-p 0.95 --seed "
      "7\n"
      "  longspan generate runs/bytes --file beginnings.txt --temperature 0 > "
      "ends.jsonl");
  const auto command = std::make_shared<GenerateCommand>();
  verb->add_option("run", command->run, "the folder of the run")->required();
  command->given.add_to(*verb, "prompts");
  GenerateOptions& options = command->options;
  verb->add_option("--tokens", options.tokens,
                   "new tokens at most; 0: 200, or as many as the model was made for")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  verb->add_option("--temperature", options.sampling.temperature,
                   "log-probabilities are divided by it; 0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--top-k", options.sampling.top_k,
                   "choose among so many of the likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  verb->add_option("--top-p", options.sampling.top_p,
                   "choose among the fewest of the likeliest tokens that together have "
                   "this probability")
      ->capture_default_str()
      ->check(CLI::Range(1e-9, 1.0));
  verb->add_option("--stop", command->stops, "ends after this text; may be given again")
      ->take_all()
      ->allow_extra_args(false);
  verb->add_option("--seed", options.seed, "of the random choices")
      ->capture_default_str();
  verb->add_option("--samples", command->samples, "continuations of each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--batch", command->batch, "continuations at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_flag("--beyond", options.beyond,
                 "go on past the length that the model was made for, if its mechanism "
                 "and positions can");
  verb->add_flag("--json", command->json, "a line of JSON also for one continuation");
  verb->add_option("--checkpoint", command->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--device", command->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(*verb);
  verb->callback([=] {
    command->given.take_from(*verb);
    for (const std::string& stop : command->stops)
      if (stop.empty()) throw UsageError("--stop must be a text, got ''");
    run(*command);
  });
}

}  // namespace longspan::cli
