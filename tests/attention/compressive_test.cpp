#include <deque>
#include <set>

#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 8, .heads = 2, .head_width = 5, .value_width = 3};

std::shared_ptr<Mixer> made_by(const Mechanism& row, const std::string& settings) {
  torch::manual_seed(1);
  auto part = make<Mixer>(row, kSizes, *Value::parse(settings).as<Value::Map>());
  convert(*part, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (auto& parameter : part->parameters())
    parameter.add_(0.3 * torch::randn_like(parameter));
  return part;
}

std::shared_ptr<Mixer> mixer(const std::string& settings) {
  return made_by(catalogue::compressive, settings);
}

// With the weights of `part` and a memory that keeps all.
std::shared_ptr<Mixer> transformer_xl_like(const Mixer& part) {
  const auto other = made_by(catalogue::transformer_xl, "{memory: 1000}");
  const torch::NoGradGuard copying;
  const auto weights = part.named_parameters();
  for (auto& entry : other->named_parameters()) {
    std::string name = entry.key();
    if (const size_t at = name.find("transformer_xl"); at != name.npos)
      name.replace(at, 14, "compressive");
    entry.value().copy_(weights[name]);
  }
  return other;
}

Pass segment_pass(Record* carry) {
  Pass pass = pass_of(true);
  pass.carry = carry;
  return pass;
}

Tensor tokens_of(int64_t count, int64_t examples = 2, uint64_t seed = 3) {
  return random_tensors(1, {examples, count, kSizes.embedding}, torch::kDouble,
                        seed)[0];
}

// The real rows of an example in a carry.
Tensor rows_of(const Record& carry, const std::string& name, int64_t example) {
  if (!carry.get(name).defined()) return torch::empty({0, 8}, torch::kDouble);
  return carry.get(name)[example].index({carry.get(name + "_tokens")[example]});
}

// The memories of one example as lists.
struct Lists {
  std::string compression;
  int64_t memory, compressed, rate;
  Tensor weight = {}, bias = {};  // of a convolution
  int64_t dilation = 1;
  std::deque<Tensor> recent = {}, old = {};

  Tensor vector_of(const std::deque<Tensor>& leaving, int64_t group) const {
    Tensors taps;
    for (int64_t tap = 0; tap < rate; ++tap) {
      const int64_t at = (group + 1) * rate - 1 - dilation * (rate - 1 - tap);
      taps.push_back(at < 0 ? torch::zeros(8, torch::kDouble)
                            : leaving[static_cast<size_t>(at)]);
    }
    const Tensor all = torch::stack(taps);
    if (compression == "mean") return all.mean(0);
    if (compression == "max") return all.amax(0);
    return weight.matmul(all.flatten()) + bias;
  }

  void add(const Tensor& rows) {
    for (int64_t i = 0; i < rows.size(0); ++i) recent.push_back(rows[i]);
    const auto count = static_cast<int64_t>(recent.size());
    const int64_t groups = std::max<int64_t>(0, count - memory) / rate;
    const std::deque<Tensor> leaving(recent.begin(), recent.begin() + groups * rate);
    for (int64_t group = 0; group < groups; ++group) {
      old.push_back(vector_of(leaving, group));
      if (static_cast<int64_t>(old.size()) > compressed) old.pop_front();
    }
    recent.erase(recent.begin(), recent.begin() + groups * rate);
  }

  static Tensor stacked(const std::deque<Tensor>& list) {
    return list.empty() ? torch::empty({0, 8}, torch::kDouble)
                        : torch::stack(Tensors(list.begin(), list.end()));
  }
};

// Ten segments of several lengths with padding, by lists; and what tokens see is what
// Transformer-XL sees of a memory of such rows.
TEST(Compressive, KeepsItsMemoriesAsListsSay) {
  for (const char* compression : {"mean", "max", "convolution", "dilated"}) {
    const auto part = mixer(
        "{memory: 5, compressed: 4, rate: 3, dilation: 2, "
        "compression: " +
        std::string(compression) + "}");
    const auto dense = transformer_xl_like(*part);
    Lists usual{.compression = compression, .memory = 5, .compressed = 4, .rate = 3};
    if (const auto* weight = part->named_parameters().find("compress_weight")) {
      usual.weight = weight->detach();
      usual.bias = part->named_parameters()["compress_bias"].detach();
    }
    if (std::string(compression) == "dilated") usual.dilation = 2;
    std::vector<Lists> lists(2, usual);
    Record carry;
    for (int64_t segment = 0; segment < 10; ++segment) {
      const int64_t count = 1 + segment * 5 % 8;
      const auto x = tokens_of(count, 2, static_cast<uint64_t>(segment));
      const auto real = torch::ones({2, count}, torch::kBool);
      real[1].slice(0, count / 2).fill_(false);
      Pass pass = segment_pass(&carry);
      pass.mask.tokens = real;
      const auto out = part->forward(x, pass);
      for (int64_t example = 0; example < 2; ++example) {
        Lists& mine = lists[static_cast<size_t>(example)];
        const auto own = x[example].index({real[example]});
        const auto past =
            torch::cat({Lists::stacked(mine.old), Lists::stacked(mine.recent)});
        Record seen;
        seen.set("memory", past.unsqueeze(0));
        seen.set("memory_tokens", torch::ones({1, past.size(0)}, torch::kBool));
        Pass by_rows = segment_pass(&seen);
        const auto expected = dense->forward(own.unsqueeze(0), by_rows)[0];
        EXPECT_TRUE(close(out[example].slice(0, 0, own.size(0)), expected, 1e-11))
            << compression << ", segment " << segment;
        mine.add(own);
        EXPECT_TRUE(close(rows_of(carry, "memory", example),
                          Lists::stacked(mine.recent), 1e-15))
            << compression << ", segment " << segment;
        EXPECT_TRUE(close(rows_of(carry, "compressed", example),
                          Lists::stacked(mine.old), 1e-12))
            << compression << ", segment " << segment;
      }
    }
  }
}

// At rate 1 with the identity nothing is compressed.
TEST(Compressive, IsTransformerXlWhereOneTokenBecomesOneVector) {
  const auto part = mixer("{memory: 6, compressed: 9, rate: 1}");
  {
    const torch::NoGradGuard changing;
    part->named_parameters()["compress_weight"].copy_(
        torch::eye(kSizes.embedding, torch::kDouble));
    part->named_parameters()["compress_bias"].zero_();
  }
  const auto other = transformer_xl_like(*part);
  Record carry, all;
  for (uint64_t segment = 0; segment < 3; ++segment) {
    const auto x = tokens_of(5, 2, segment);
    Pass one = segment_pass(&carry), two = segment_pass(&all);
    EXPECT_TRUE(close(part->forward(x, one), other->forward(x, two), 1e-12));
  }
  EXPECT_EQ(carry.get("compressed").size(1), 9);
}

TEST(Compressive, SegmentsWithinTheMemoryAreOneSequence) {
  const auto part = mixer("{memory: 29, compressed: 4, rate: 2}");
  const auto x = tokens_of(30);
  Pass whole = pass_of(true);
  const auto expected = part->forward(x, whole);
  Record carry;
  for (int64_t at = 0; at < 30; at += 10) {
    Pass pass = segment_pass(&carry);
    EXPECT_TRUE(close(part->forward(x.slice(1, at, at + 10), pass),
                      expected.slice(1, at, at + 10), 1e-12));
  }
}

// Tokens 1 and 3 draw all attention of those that can see them.
TEST(Compressive, KeepsWhatWasUsedMost) {
  const auto part =
      mixer("{memory: 4, compressed: 4, rate: 2, compression: most_used}");
  {
    const torch::NoGradGuard changing;
    for (auto& parameter : part->parameters()) parameter.zero_();
    auto weights = part->named_parameters();
    weights["k_weight"][0][0] = weights["k_weight"][5][0] = 1;
    weights["shared.compressive_content_bias"].select(1, 0).fill_(10);
  }
  auto x = tokens_of(8, 1);
  x.select(2, 0).zero_();
  x[0][1][0] = x[0][3][0] = 8;
  Record carry;
  for (int64_t at = 0; at < 8; at += 4) {
    Pass pass = segment_pass(&carry);
    part->forward(x.slice(1, at, at + 4), pass);
  }
  EXPECT_TRUE(rows_of(carry, "compressed", 0).equal(torch::stack({x[0][1], x[0][3]})));
  EXPECT_TRUE(rows_of(carry, "memory", 0).equal(x[0].slice(0, 4)));
}

// Without weights every query divides itself evenly.
TEST(Compressive, UseIsTheWeightOfAllQueriesSoFar) {
  const auto part = mixer("{memory: 10, rate: 2, compression: most_used}");
  {
    const torch::NoGradGuard changing;
    for (auto& parameter : part->parameters()) parameter.zero_();
  }
  Record carry;
  for (const int64_t count : {3, 5}) {
    Pass pass = segment_pass(&carry);
    part->forward(tokens_of(count, 1), pass);
  }
  for (int64_t token = 0; token < 8; ++token) {
    double weight = 0;
    for (int64_t query = token; query < 8; ++query)
      weight += static_cast<double>(kSizes.heads) / static_cast<double>(query + 1);
    EXPECT_NEAR(carry.get("use")[0][token][0].item<double>(), weight, 1e-12);
    EXPECT_EQ(carry.get("use")[0][token][1].item<double>(), 8 - token);
  }
}

// Also with padding, and use that was counted over several segments.
TEST(Compressive, CountsUseAsTheDefinitionDoes) {
  const auto part =
      mixer("{memory: 5, compressed: 6, rate: 2, compression: most_used}");
  Record fast, defined;
  for (uint64_t segment = 0; segment < 6; ++segment) {
    const auto x = tokens_of(4, 3, segment);
    const auto real = torch::ones({3, 4}, torch::kBool);
    real[1].slice(0, 0, 2).fill_(false);
    real[2].slice(0, 2).fill_(false);
    Pass one = segment_pass(&fast), two = segment_pass(&defined);
    one.mask.tokens = two.mask.tokens = real;
    EXPECT_TRUE(close(part->forward(x, one), part->reference(x, two), 1e-11));
    EXPECT_TRUE(close(fast.get("use"), defined.get("use"), 1e-11));
  }
  EXPECT_TRUE(fast.get("compressed").equal(defined.get("compressed")));
  EXPECT_EQ(fast.get("compressed_tokens").sum().item<int64_t>(), 6 + 2 * 3);
}

struct Learnt {
  double loss = 0;
  std::set<std::string> changed;  // parameters with a gradient
};

// Of the second of two segments, by its losses alone.
Learnt learnt(Mixer& part, const Tensor& first, const Tensor& second) {
  Record carry;
  Learnt result;
  for (const Tensor& x : {first, second}) {
    Pass pass = segment_pass(&carry);
    pass.training = true;
    part.zero_grad();
    part.forward(x, pass);
    if (x.is_same(first)) continue;
    EXPECT_EQ(pass.losses.size(), 1u);
    const Tensor loss = pass.losses.begin()->second;
    result.loss = loss.item<double>();
    loss.backward();
  }
  for (const auto& entry : part.named_parameters())
    if (entry.value().grad().defined() &&
        entry.value().grad().abs().max().item<double>() > 0)
      result.changed.insert(entry.key());
  return result;
}

TEST(Compressive, LossesTeachTheConvolutionAlone) {
  const auto x = tokens_of(6), y = tokens_of(6, 2, 8);
  for (const char* compression : {"convolution", "dilated"}) {
    const std::string settings =
        "{memory: 6, compressed: 4, rate: 3, compression: " + std::string(compression) +
        ", loss: ";
    const auto attention = learnt(*mixer(settings + "attention}"), x, y);
    EXPECT_EQ(attention.changed,
              (std::set<std::string>{"compress_weight", "compress_bias"}));
    EXPECT_GT(attention.loss, 1e-4);
    const auto autoencoder = learnt(*mixer(settings + "autoencoder}"), x, y);
    EXPECT_EQ(autoencoder.changed,
              (std::set<std::string>{"compress_weight", "compress_bias",
                                     "restore_weight", "restore_bias"}));
  }
}

// What tokens see teaches the attention, not the convolution; evaluation has no losses.
TEST(Compressive, OutputsDoNotTeachTheConvolution) {
  const auto part = mixer("{memory: 3, compressed: 4, rate: 3}");
  Record carry;
  for (uint64_t segment = 0; segment < 3; ++segment) {
    Pass pass = segment_pass(&carry);
    part->forward(tokens_of(6, 2, segment), pass).sum().backward();
    EXPECT_TRUE(pass.losses.empty());
  }
  EXPECT_FALSE(part->named_parameters()["compress_weight"].grad().defined());
  EXPECT_TRUE(part->named_parameters()["k_weight"].grad().defined());
}

// Where the tokens of a group are alike their mean is as good as they are.
TEST(Compressive, TheAttentionLossIsZeroForAPerfectMemory) {
  const auto part = mixer("{memory: 6, compressed: 4, rate: 3}");
  {
    const torch::NoGradGuard changing;
    part->named_parameters()["compress_bias"].zero_();
    part->named_parameters()["compress_weight"].copy_(
        torch::eye(kSizes.embedding, torch::kDouble).repeat({1, 3}) / 3);
  }
  const auto alike = tokens_of(2).repeat_interleave(3, 1), y = tokens_of(6, 2, 8);
  EXPECT_LT(learnt(*part, alike, y).loss, 1e-24);
  EXPECT_GT(learnt(*part, tokens_of(6), y).loss, 1e-4);
}

}  // namespace
}  // namespace longspan::testing
