#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "longspan/attention/grc.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/given_texts.h"
#include "longspan/models/token_weights.h"
#include "longspan/report/weights_page.h"
#include "longspan/train/experiment.h"

namespace longspan::cli {
namespace {

struct ExplainOptions {
  std::string run, checkpoint = "best", device, out;
  GivenTexts given;
};

// What ids stand for.
struct Pieces {
  std::vector<std::string> texts;
  bool are_bytes = false;
};

bool are_bytes(const std::string& text, const std::vector<int32_t>& ids) {
  const auto is_byte = [](int32_t id, char byte) {
    return id == static_cast<unsigned char>(byte) + 1;
  };
  return ids.size() <= text.size() &&
         std::equal(ids.begin(), ids.end(), text.begin(), is_byte);
}

// The words of a text as written, if these are what the ids stand for: runs of letters
// and digits, and every other character that is no space by itself.
std::vector<std::string> written_words(const Task& task, const std::string& text,
                                       const std::vector<int32_t>& ids) {
  std::vector<std::string> words;
  bool is_open = false;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool goes_on = byte >= 128 || std::isalnum(byte);
    if (goes_on && is_open)
      words.back() += letter;
    else if (goes_on || !std::isspace(byte))
      words.emplace_back(1, letter);
    is_open = goes_on;
  }
  if (words.size() < ids.size()) return {};
  words.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    if (task.encode(words[i]) != std::vector<int32_t>{ids[i]}) return {};
  return words;
}

Pieces pieces_of(const TrainedModel& trained, const std::string& text,
                 const std::vector<int32_t>& ids) {
  const Task& task = trained.task;
  Pieces pieces{.texts = {}, .are_bytes = are_bytes(text, ids)};
  if (trained.experiment.task.tokens == "words")
    pieces.texts = written_words(task, text, ids);
  if (!pieces.texts.empty()) return pieces;
  for (size_t i = 0; i < ids.size(); ++i)
    pieces.texts.push_back(pieces.are_bytes ? text.substr(i, 1)
                           : task.decode    ? task.decode({&ids[i], 1})
                                            : "#" + std::to_string(ids[i]));
  return pieces;
}

std::vector<double> numbers(const torch::Tensor& tensor) {
  const torch::Tensor held = tensor.contiguous();
  return {held.data_ptr<double>(), held.data_ptr<double>() + held.numel()};
}

// The given text, or the two of a pair, with a tab between.
std::vector<std::string> texts_of(const Task& task, const std::string& given) {
  if (!task.pairs) return {given};
  const size_t tab = given.find('\t');
  return {given.substr(0, tab), given.substr(tab + 1)};
}

// What a head, or all, gives the words.
report::WordWeights word_weights(const std::string& title,
                                 const report::WordSplit& split,
                                 const torch::Tensor& weights, double front,
                                 double memory) {
  return {.title = title,
          .weights = report::by_words(split, numbers(weights)),
          .front = front,
          .memory = memory};
}

report::WeighedText weighed(const Task& task, const TokenWeights& weights,
                            const Pieces& pieces) {
  const auto split = report::split_words(pieces.texts, pieces.are_bytes);
  report::WeighedText out{.words = split.words, .of_bytes = pieces.are_bytes};
  for (size_t i = 0; i < task.labels.size(); ++i)
    out.labels.emplace_back(task.labels[i], weights.probabilities[i]);
  out.whole = word_weights(
      weights.layers.size() == 1 ? "the mean of all heads" : "through all layers",
      split, weights.through, weights.front, weights.memory);
  for (const TokenWeights::Layer& layer : weights.layers) {
    report::WeighedText::Layer& shown = out.layers.emplace_back();
    shown.title = "layer " + std::to_string(layer.layer) + ": " + layer.mechanism +
                  (layer.memory.defined() ? " beside a memory" : "");
    const int64_t heads = layer.heads.size(0);
    for (int64_t head = 0; head < heads; ++head)
      shown.heads.push_back(
          word_weights("head " + std::to_string(head), split, layer.heads[head],
                       layer.front[head].item<double>(),
                       layer.memory.defined() && layer.memory.size(0) == heads
                           ? layer.memory[head].item<double>()
                           : 0));
  }
  return out;
}

// One, or those of a pair.
std::vector<report::WeighedText> weighed(TrainedModel& trained,
                                         const std::string& given) {
  const Task& task = trained.task;
  auto ids = encode_all(task, given);
  const auto texts = texts_of(task, given);
  std::vector<std::string> notes(texts.size());
  std::vector<torch::Tensor> tensors;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (static_cast<int64_t>(ids[i].size()) > task.longest) {
      ids[i].resize(static_cast<size_t>(task.longest));
      notes[i] = "cut at " + std::to_string(task.longest) + " tokens";
    }
    require(!ids[i].empty(), "a text without tokens has no weights, got '", texts[i],
            "'");
    tensors.push_back(
        torch::tensor(std::vector<int64_t>(ids[i].begin(), ids[i].end()), torch::kLong)
            .to(device_of(trained.experiment.train)));
  }
  const auto weights = token_weights(*trained.model.classifier,
                                     trained.experiment.model, tensors, trained.carry);
  std::vector<report::WeighedText> all;
  for (size_t i = 0; i < texts.size(); ++i) {
    all.push_back(weighed(task, weights[i], pieces_of(trained, texts[i], ids[i])));
    all.back().note = notes[i];
    if (task.pairs) all.back().which = i == 0 ? "the first" : "the second";
  }
  return all;
}

// What GRC's heads read from their memories, whatever the text.
std::vector<report::MemoryUse> memories_of(const TrainedModel& trained) {
  std::vector<report::MemoryUse> all;
  for (const auto& [name, share, of_heads] : memory_shares(trained.model.module())) {
    const size_t dot = name.find('.');  // "encoder.layer0.mixer"
    all.push_back({.layer = name.substr(dot + 1, name.rfind('.') - dot - 1),
                   .of_heads = of_heads,
                   .shares = numbers(share.to(torch::kCPU, torch::kDouble))});
  }
  return all;
}

std::string json_of(const report::WeightsReport& report) {
  using nlohmann::ordered_json;
  ordered_json texts = ordered_json::array();
  const auto of = [](const report::WordWeights& weights) {
    return ordered_json{{"title", weights.title},
                        {"front", weights.front},
                        {"memory", weights.memory},
                        {"weights", weights.weights}};
  };
  for (const report::WeighedText& text : report.texts) {
    ordered_json one = {{"words", text.words}, {"whole", of(text.whole)}};
    if (!text.which.empty()) one["of_pair"] = text.which;
    for (const auto& [label, probability] : text.labels)
      one["probabilities"][label] = probability;
    for (const auto& [title, heads] : text.layers) {
      ordered_json layer = {{"title", title}};
      for (const auto& head : heads) layer["heads"].push_back(of(head));
      one["layers"].push_back(layer);
    }
    texts.push_back(one);
  }
  return texts.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void explain(const ExplainOptions& options) {
  const bool is_page = options.out.ends_with(".html");
  if (!is_page && !options.out.ends_with(".json"))
    throw UsageError("--out must end in .html or .json, got " + options.out);
  TrainedModel trained = open_run(options.run, options.checkpoint, options.device);
  require(trained.model.classifier != nullptr, trained.task.name,
          " gives texts no labels, so there is nothing to explain");
  const TransformerOptions& model = trained.experiment.model;
  report::WeightsReport report{
      .title = "What " + options.run + " looks at",
      .facts = {
          {"model", std::to_string(model.layers) +
                        (model.layers == 1 ? " layer of " : " layers of ") +
                        model.attention.text() + ", " + std::to_string(model.heads) +
                        " heads"},
          {"task", trained.task.name},
          {"weights", model.pooling == "mean"
                          ? "of all tokens in the mean, which the classifier reads"
                          : "of the token in front, which the classifier reads"},
          {"checkpoint", trained.checkpoint}}};
  const GivenTexts& given = options.given;
  const auto texts =
      given.none() ? given.read_standard_input() : given.read(trained.task.text_column);
  require(!texts.empty(), "there is no text to explain; give it as an argument, by ",
          "--file or on standard input, one a line");
  for (const std::string& text : texts)
    for (report::WeighedText& one : weighed(trained, text))
      report.texts.push_back(std::move(one));
  report.memories = memories_of(trained);
  write_whole(options.out, is_page ? report::weights_page(report) : json_of(report));
  std::cout << options.out << '\n';
}

}  // namespace

void add_explain(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "explain",
      "shows which words a trained classifier weighs how much, head by head");
  verb->footer(
      "Examples:\n"
      "  longspan explain runs/mine \"a text\" --out explained.html\n"
      "  longspan explain runs/small --file new.tsv --out explained.json\n"
      "Weights are those of the token in front in every head, and through all layers "
      "(attention rollout).\nThey take memory that grows like the text, at thousands "
      "of tokens too. Of a model for pairs\na text is two, with a tab between.");
  const auto options = std::make_shared<ExplainOptions>();
  verb->add_option("run", options->run, "the folder of the run")->required();
  options->given.add_to(*verb, "texts");
  verb->add_option("--out", options->out, "the file to write, .html or .json")
      ->required();
  verb->add_option("--checkpoint", options->checkpoint,
                   "best, last, or the folder of one")
      ->capture_default_str();
  verb->add_option("--device", options->device, "cpu or cuda, if not as trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(*verb);
  verb->callback([=] {
    options->given.take_from(*verb);
    explain(*options);
  });
}

}  // namespace longspan::cli
