// Running text, of which a model is to say the next token or those that were hidden.

#include <array>

#include "longspan/base/error.h"
#include "longspan/data/text_splits.h"
#include "longspan/data/token_file.h"
#include "longspan/data/token_windows.h"
#include "longspan/tasks/kinds.h"

namespace longspan {
namespace {

constexpr int64_t kLongest = 1024;  // of windows, where task.longest does not say

void prepare(Task& task, const TaskOptions& options,
             const std::shared_ptr<const TextTokens>& tokens) {
  const auto ordinary = static_cast<int32_t>(tokens->ids());
  task.end_of_text = ordinary;
  if (task.goal == Goal::masked_tokens) task.mask = ordinary + 1;
  task.ids = ordinary + (task.goal == Goal::masked_tokens ? 2 : 1);
  task.saved_vocabulary = tokens->saved();
  task.text_column = options.text;
  task.facts.push_back(tokens->describe());
  task.encode = [tokens](const std::string& text) { return tokens->encode(text); };
  task.encode_parts = [tokens](std::span<const std::string_view> parts) {
    return tokens->encode_parts(parts);
  };
  task.decode = [tokens](std::span<const int32_t> ids) { return tokens->decode(ids); };
  task.unwritten = tokens->unwritten();
}

Task named(const TaskOptions& options) {
  return {.name = "text",
          .goal = options.goal == "masked" ? Goal::masked_tokens : Goal::next_token,
          .longest = options.longest > 0 ? options.longest : kLongest};
}

TextSplitOptions split_options(const TaskOptions& options) {
  const auto path = [&](const std::string& file) {
    return file.empty() ? file : in_data(options, file);
  };
  return {.train = path(options.train),
          .valid = path(options.valid),
          .test = path(options.test),
          .valid_share = options.valid_share,
          .test_share = options.test_share,
          .seed = options.split_seed,
          .column = options.text};
}

TokenizerOptions tokenizer_options(const TaskOptions& options) {
  return {.kind = options.tokens,
          .vocabulary = options.vocabulary,
          .least_count = options.least_count,
          .model = options.sentencepiece_model.empty()
                       ? std::string()
                       : in_data(options, options.sentencepiece_model)};
}

std::shared_ptr<const Dataset> windows(const Task& task, const TaskOptions& options,
                                       const TokenText& text, bool judged) {
  const WindowOptions cut{.longest = task.longest,
                          .context = judged ? options.context : 0,
                          .end_of_text = task.end_of_text,
                          .apart = options.documents == "apart"};
  if (task.goal == Goal::next_token) return next_token_windows(text, cut);
  return masked_windows(text, cut,
                        {.mask = task.mask,
                         .ordinary = task.end_of_text,
                         .share = options.masked_share,
                         .pairs = options.pairs});
}

void check(const Task& task, const TaskOptions& options) {
  argument([&] {
    require(options.context < task.longest, "task.context, ", options.context,
            ", must be less than task.longest, ", task.longest);
    require(options.context == 0 || task.goal == Goal::next_token,
            "task.context is for task.goal next, got ", options.goal);
  });
}

// What tokens do not tell is not to be counted against them.
TokenText text_of(const TokenList& tokens, const TextCounts& counts) {
  return {.tokens = tokens,
          .words = counts.unknown == 0 ? counts.words : 0,
          .bytes = counts.kept ? counts.bytes : 0,
          .unknown = counts.unknown};
}

void set_split(Task& task, const TaskOptions& options, size_t split,
               const TokenText& text) {
  require(text.tokens.size() > 0, "task.", kSplits[split],
          ": no text is left for it; give larger shares or another file");
  if (text.unknown > 0)
    task.facts.push_back(std::string(kSplits[split]) + ": " +
                         std::to_string(text.unknown) + " of " +
                         std::to_string(text.tokens.size()) + " tokens are unknown");
  task.texts[kSplits[split]] = windows(task, options, text, /*judged=*/split > 0);
}

// A file of the kind of tokens that options say.
TokenFile open_of_kind(const TaskOptions& options, const std::string& path) {
  TokenFile file = open_token_file(path);
  argument([&] {
    require(file.facts.kind == options.tokens, "task.tokens is ", options.tokens,
            ", but ", path, " holds ", file.facts.kind);
  });
  return file;
}

// Of the text that is trained on.
void check_documents(const TaskOptions& options, const std::string& path,
                     const TextCounts& counts) {
  argument([&] {
    require(options.documents == "joined" || counts.documents > 0,
            "task.documents: ", path, " is one long text, which has no documents to ",
            "keep ", options.documents, "; use joined");
  });
}

TokenText mapped_text(const TaskOptions& options, const std::string& path,
                      const std::string& vocabulary) {
  const TokenFile file = open_of_kind(options, path);
  require(file.facts.vocabulary == vocabulary, path,
          ": its vocabulary is not the one that is trained with");
  return text_of(file.tokens, file.counts);
}

Task open_tokens(const TaskOptions& options) {
  Task task = named(options);
  const std::string train = in_data(options, options.train);
  const std::array<std::string, 3> files = {options.train, options.valid, options.test};
  const TokenFile file = open_of_kind(options, train);
  check_documents(options, train, file.counts);
  const std::string& vocabulary = file.facts.vocabulary;
  argument([&] {
    require(
        !options.valid.empty() && !options.test.empty(), train,
        " holds tokens, so task.valid and task.test must be files of tokens as well");
  });
  prepare(task, options, restore_text_tokens(options.tokens, vocabulary));
  for (size_t i = 0; i < kSplits.size(); ++i) {
    const std::string path = in_data(options, files[i]);
    const TokenText text = mapped_text(options, path, vocabulary);
    set_split(task, options, i, text);
    task.facts.push_back(std::string(kSplits[i]) + ": " + path + ", " +
                         std::to_string(text.tokens.size()) + " tokens");
  }
  return task;
}

Task open(const TaskOptions& options) {
  Task task = named(options);
  check(task, options);
  if (is_token_file(in_data(options, options.train))) return open_tokens(options);
  const TextSplits splits(split_options(options));
  const bool bytes = options.tokens == "bytes";
  const auto tokens =
      build_text_tokens(tokenizer_options(options), splits.training(bytes));
  prepare(task, options, tokens);
  for (const std::string& fact : splits.facts()) task.facts.push_back(fact);
  std::vector<TokenBuffer> buffers(kSplits.size(), TokenBuffer(task.ids));
  const auto counts = splits.encode(*tokens, task.end_of_text,
                                    {buffers.data(), &buffers[1], &buffers[2]});
  check_documents(options, in_data(options, options.train), counts[0]);
  for (size_t i = 0; i < kSplits.size(); ++i)
    set_split(task, options, i, text_of(std::move(buffers[i]).list(), counts[i]));
  return task;
}

Task restore(const TaskOptions& options, const std::string&,
             const std::string& vocabulary) {
  Task task = named(options);
  prepare(task, options, restore_text_tokens(options.tokens, vocabulary));
  return task;
}

Task outline(const TaskOptions& options) {
  Task task = named(options);
  constexpr int64_t kBytes = 257;
  task.end_of_text =
      static_cast<int32_t>(options.tokens == "bytes" ? kBytes : options.vocabulary);
  task.ids = task.end_of_text + 1;
  if (task.goal == Goal::masked_tokens) task.mask = static_cast<int32_t>(task.ids++);
  return task;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions& options,
                                    const std::string& path) {
  check(task, options);
  if (is_token_file(path))
    return windows(task, options, mapped_text(options, path, task.saved_vocabulary),
                   /*judged=*/true);
  const auto tokens = restore_text_tokens(options.tokens, task.saved_vocabulary);
  TokenBuffer buffer(task.ids);
  const TextCounts counts =
      encode_text(TextFiles(path, options.text), *tokens, task.end_of_text, buffer);
  return windows(task, options, text_of(std::move(buffer).list(), counts),
                 /*judged=*/true);
}

}  // namespace

const TaskKind kText{
    .name = "text", .open = open, .outline = outline, .restore = restore, .read = read};

}  // namespace longspan
