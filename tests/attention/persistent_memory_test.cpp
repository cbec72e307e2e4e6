#include <cmath>

#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const Mechanism& row, const std::string& settings) {
  return make<Attention>(row, {.heads = 4, .head_width = 16},
                         *Value::parse(settings).as<Value::Map>());
}

TEST(PersistentMemory, IsDenseWithMoreKeys) {
  const auto attention = made(catalogue::persistent_memory, "{memory: 25}");
  const auto memory = attention->named_parameters();
  const auto x = random_tensors(3, {2, 4, 70, 16}, torch::kFloat);
  for (const bool causal : {false, true}) {
    Pass one, other;
    one.mask.causal = other.mask.causal = causal;
    // The memory is past for all tokens.
    const auto before = [&](const char* name, double scale, const Tensor& y) {
      return torch::cat({scale * memory[name].expand({2, -1, -1, -1}), y}, 2);
    };
    EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], one),
                      made(catalogue::dense, "{}")
                          ->forward(x[0], before("memory_k", 4, x[1]),
                                    before("memory_v", 5, x[2]), other),
                      1e-5));
  }
}

TEST(PersistentMemory, ABiasIsOfTokensAlone) {
  const auto attention = made(catalogue::persistent_memory, "{memory: 25}");
  const auto x = random_tensors(3, {1, 4, 9, 16}, torch::kFloat);
  Pass pass;
  pass.bias.column = torch::full({1, 1, 9}, -1e4f);  // only the memory is left
  const Tensor memory_k = 4 * attention->named_parameters()["memory_k"];
  const Tensor memory_v = 5 * attention->named_parameters()["memory_v"];
  const Tensor expected =
      (x[0].matmul(memory_k.transpose(1, 2)) / 4).softmax(3).matmul(memory_v);
  EXPECT_TRUE(close(attention->forward(x[0], x[1], x[2], pass), expected, 1e-5));
}

TEST(PersistentMemory, BeginsAsLargeAsKeysAndValues) {
  const auto memory = made(catalogue::persistent_memory, "{}")->named_parameters();
  EXPECT_EQ(memory["memory_k"].sizes(), (std::vector<int64_t>{4, 1024, 16}));
  EXPECT_NEAR(memory["memory_k"].std().item<double>(), 1 / std::sqrt(16), 0.005);
  EXPECT_NEAR(memory["memory_v"].std().item<double>(), 1 / std::sqrt(1024), 0.001);
}

TEST(PersistentMemory, StandsInForTheFeedForward) {
  EXPECT_FALSE(catalogue::persistent_memory.keeps.feed_forward);
  EXPECT_TRUE(catalogue::persistent_memory.keeps.residual);
}

TEST(PersistentMemory, ShowsItsFirstKeysInPictures) {
  const Sight sight = made(catalogue::persistent_memory, "{}")->sight(5, true);
  EXPECT_EQ(sight.memory_columns, 8);
  EXPECT_TRUE(sight.pairs[0].slice(1, 0, 8).eq(1).all().item<bool>());
  EXPECT_TRUE(
      sight.pairs[0].slice(1, 8).equal(torch::ones({5, 5}, torch::kByte).tril()));
}

}  // namespace
}  // namespace longspan::testing
