#include "longspan/data/token_windows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"
#include "longspan/data/order.h"

namespace longspan {
namespace {

uint32_t checksum_of(uint32_t before, std::initializer_list<int64_t> numbers) {
  return crc32c({reinterpret_cast<const char*>(numbers.begin()),
                 numbers.size() * sizeof(int64_t)},
                before);
}

// Rows of a batch, filled from the left; what is left is padding.
struct Rows {
  Rows(int64_t count, int64_t length, const BatchOptions& options, bool segments,
       bool kinds) {
    const auto of = [&](torch::Dtype type, int64_t value) {
      return torch::full(
          {count, length}, value,
          torch::TensorOptions(type).pinned_memory(options.meant_for.is_cuda()));
    };
    batch.ids = of(torch::kLong, 0);
    batch.tokens = of(torch::kBool, 0);
    batch.targets = of(torch::kLong, -1);
    if (segments) batch.segments = of(torch::kLong, 0);
    if (kinds) batch.kinds = of(torch::kLong, 0);
  }

  static int64_t* row(const torch::Tensor& tensor, int64_t number) {
    return tensor.defined() ? tensor.data_ptr<int64_t>() + number * tensor.size(1)
                            : nullptr;
  }

  Batch batch;
};

class Windows : public TextDataset {
 public:
  Windows(const TokenText& text, const WindowOptions& options)
      : text_(text), options_(options) {
    require(text.tokens.size() > 0, "there is no token in the text");
  }

  bool apart() const override { return options_.apart; }
  double unknown_share() const override {
    return static_cast<double>(text_.unknown) /
           static_cast<double>(text_.tokens.size());
  }

 protected:
  int64_t longest_of(std::span<const int64_t> numbers,
                     const BatchOptions& options) const {
    require(!numbers.empty(), "a batch needs at least one example");
    int64_t longest = std::max<int64_t>(1, options.tokens);
    for (const int64_t number : numbers)
      longest = std::max(longest, number < 0 ? 0 : length(number));
    return longest;
  }

  int32_t token(int64_t place) const {
    const int32_t id = text_.tokens[place];
    require(id > 0 && id <= options_.end_of_text, "token ", place, " of the text is ",
            id, ", must be 1 .. ", options_.end_of_text, "; its file is damaged");
    return id;
  }

  TokenText text_;
  WindowOptions options_;
};

class NextTokens final : public Windows {
 public:
  NextTokens(const TokenText& text, const WindowOptions& options)
      : Windows(text, options), advance_(options.longest - options.context) {
    require(options.longest > 0 && options.context >= 0 && advance_ > 0,
            "windows need a longest length of 1 or more, and a context that is less, ",
            "got ", options.longest, " and ", options.context);
    const int64_t rest = text.tokens.size() - options.longest;
    size_ = 1 + std::max<int64_t>(0, (rest + advance_ - 1) / advance_);
  }

  int64_t size() const override { return size_; }
  int64_t length(int64_t window) const override {
    return std::min(options_.longest, text_.tokens.size() - window * advance_);
  }
  int64_t words() const override { return text_.words; }
  int64_t bytes() const override { return text_.bytes; }
  bool overlaps() const override { return options_.context > 0; }

  uint32_t fingerprint() const override {
    return checksum_of(text_.tokens.checksum(),
                       {options_.longest, options_.context, options_.end_of_text,
                        int64_t{options_.apart}});
  }

  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options) const override {
    const auto count = std::ssize(numbers);
    Batch batch = Rows(count, longest_of(numbers, options), options, options_.apart,
                       /*kinds=*/false)
                      .batch;
    for (int64_t i = 0; i < count; ++i)
      if (const int64_t window = numbers[static_cast<size_t>(i)]; window >= 0)
        fill(batch, i, window);
    return batch;
  }

 private:
  void fill(Batch& batch, int64_t row, int64_t window) const {
    auto* const ids = Rows::row(batch.ids, row);
    auto* const targets = Rows::row(batch.targets, row);
    auto* const segments = Rows::row(batch.segments, row);
    const int64_t first = window * advance_, size = length(window);
    const int64_t asked_from = window == 0 ? 0 : options_.context;
    int32_t before = first == 0 ? options_.end_of_text : text_.tokens[first - 1];
    int64_t segment = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int32_t next = token(first + i);
      ids[i] = before;
      if (i >= asked_from) targets[i] = next;
      if (i > 0 && before == options_.end_of_text) ++segment;
      if (segments) segments[i] = segment;
      before = next;
    }
    std::fill_n(batch.tokens.data_ptr<bool>() + row * batch.ids.size(1), size, true);
    batch.real_tokens += size;
    batch.answers += size - asked_from;
  }

  int64_t advance_, size_;
};

class MaskedTokens final : public Windows {
 public:
  MaskedTokens(const TokenText& text, const WindowOptions& options,
               const MaskOptions& masks)
      : Windows(text, options), masks_(masks), frame_(masks.pairs ? 2 : 1) {
    require(options.longest > frame_ + 1,
            "windows with hidden tokens need a longest length of ", frame_ + 2,
            " or more, got ", options.longest);
  }

  int64_t size() const override { return (text_.tokens.size() + room() - 1) / room(); }
  int64_t length(int64_t window) const override { return text_size(window) + frame_; }
  int64_t words() const override { return 0; }  // only some are asked
  int64_t bytes() const override { return 0; }

  uint32_t fingerprint() const override {
    return checksum_of(text_.tokens.checksum(),
                       {options_.longest, options_.end_of_text, options_.apart,
                        masks_.mask, masks_.pairs, std::llround(masks_.share * 1e9)});
  }

  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options) const override {
    const auto count = std::ssize(numbers);
    Batch batch =
        Rows(count, longest_of(numbers, options), options, options_.apart, masks_.pairs)
            .batch;
    for (int64_t i = 0; i < count; ++i)
      if (const int64_t window = numbers[static_cast<size_t>(i)]; window >= 0)
        fill(batch, i, window, mix(options.key, static_cast<uint64_t>(window)));
    return batch;
  }

 private:
  int64_t room() const { return options_.longest - frame_; }
  int64_t text_size(int64_t window) const {
    return std::min(room(), text_.tokens.size() - window * room());
  }

  void fill(Batch& batch, int64_t row, int64_t window, Key key) const {
    auto* const ids = Rows::row(batch.ids, row);
    auto* const segments = Rows::row(batch.segments, row);
    auto* const kinds = Rows::row(batch.kinds, row);
    const int64_t count = text_size(window), first = window * room();
    const int64_t split = masks_.pairs ? pair_split(count, mix(key, 0)) : count;
    std::vector<int64_t> may_hide;
    int64_t at = 0, segment = 0;
    const auto put = [&](int64_t id, bool second) {
      ids[at] = id;
      if (segments) segments[at] = segment;
      if (kinds) kinds[at] = second ? 1 : 0;
      ++at;
    };
    for (int64_t i = 0; i < count; ++i) {
      if (i == split) put(options_.end_of_text, /*second=*/false);
      const int32_t id = token(first + i);
      if (id != options_.end_of_text) may_hide.push_back(at);
      put(id, i >= split);
      if (id == options_.end_of_text) ++segment;
    }
    if (masks_.pairs && split == count) put(options_.end_of_text, /*second=*/false);
    put(options_.end_of_text, masks_.pairs);
    std::fill_n(batch.tokens.data_ptr<bool>() + row * batch.ids.size(1), at, true);
    batch.real_tokens += at;
    batch.answers += hide(may_hide, ids, Rows::row(batch.targets, row), mix(key, 1));
  }

  // Where the second text begins.
  static int64_t pair_split(int64_t count, Key key) {
    const int64_t least = (count + 3) / 4, most = std::max(least, count - count / 4);
    const auto places = static_cast<uint64_t>(most - least + 1);
    return least + static_cast<int64_t>(philox(key, {})[0] * places >> 32);
  }

  int64_t hide(const std::vector<int64_t>& places, int64_t* ids, int64_t* targets,
               Key key) const {
    if (places.empty()) return 0;
    const auto all = std::ssize(places);
    const int64_t count = std::clamp<int64_t>(
        std::llround(masks_.share * static_cast<double>(all)), 1, all);
    const auto order = permutation(all, key);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = places[static_cast<size_t>(order[static_cast<size_t>(i)])];
      targets[at] = ids[at];
      const auto words = philox(mix(key, 1), {static_cast<uint32_t>(i)});
      if (words[0] < word_limit(0.8))
        ids[at] = masks_.mask;
      else if (words[0] < word_limit(0.9))
        ids[at] = 1 + static_cast<int64_t>(
                          words[1] * static_cast<uint64_t>(masks_.ordinary - 1) >> 32);
    }
    return count;
  }

  MaskOptions masks_;
  int64_t frame_;  // tokens beside those of the text
};

}  // namespace

std::shared_ptr<const TextDataset> next_token_windows(const TokenText& text,
                                                      const WindowOptions& options) {
  return std::make_shared<NextTokens>(text, options);
}

std::shared_ptr<const TextDataset> masked_windows(const TokenText& text,
                                                  const WindowOptions& options,
                                                  const MaskOptions& masks) {
  return std::make_shared<MaskedTokens>(text, options, masks);
}

}  // namespace longspan
