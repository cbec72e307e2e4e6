#include "longspan/attention/projected.h"
#include "longspan/base/error.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

const Mechanism& kRow = catalogue::cluster_former;
constexpr Sizes kSizes{.embedding = 24, .heads = 4, .head_width = 8};

std::shared_ptr<Mixer> mixer(const std::string& settings) {
  torch::manual_seed(3);
  return make<Mixer>(kRow, kSizes, *Value::parse(settings).as<Value::Map>());
}

// Dense attention with the projections of `layer`.
Tensor by_dense(const torch::nn::Module& layer, const Tensor& x, Pass pass = {}) {
  const auto dense = make_mixer(catalogue::dense, kSizes);
  const torch::NoGradGuard copying;
  for (auto& entry : dense->named_parameters())
    entry.value().copy_(layer.named_parameters()[entry.key()]);
  return dense->forward(x, pass);
}

Tensor state(int64_t tokens, int64_t examples = 2) {
  return random_tensors(1, {examples, tokens, 24}, torch::kFloat)[0];
}

TEST(ClusterFormer, OneChunkOrWindowIsDense) {
  for (const char* kind : {"clusters", "windows"})
    for (const int64_t tokens : {1, 30}) {
      const auto layer = mixer("{window: 30, stride: 20, clusters: 5, bank: 9, kind: " +
                               std::string(kind) + "}");
      Pass pass;
      EXPECT_TRUE(close(layer->forward(state(tokens), pass),
                        by_dense(*layer, state(tokens)), 1e-5));
    }
}

TEST(ClusterFormer, ChunksOfOneClusterAreBlocks) {
  const Tensor x = state(24);
  for (const char* settings : {"{clusters: 1, window: 8, stride: 8, bank: 9}",
                               "{kind: windows, window: 8, stride: 8}"}) {
    const auto layer = mixer(settings);
    Pass pass;
    const Tensor out = layer->forward(x, pass);
    for (int64_t from = 0; from < 24; from += 8)
      EXPECT_TRUE(close(out.slice(1, from, from + 8),
                        by_dense(*layer, x.slice(1, from, from + 8)), 1e-5));
  }
}

TEST(ClusterFormer, ChunksHoldTokensThatAreAlike) {
  // Two kinds of tokens in turn, and centroids that tell them apart.
  const auto layer = mixer("{clusters: 2, window: 10, stride: 10, bank: 9}");
  const Tensor centroids = torch::zeros({2, 24});
  centroids[0][0] = 1;
  centroids[1][0] = -1;
  layer->named_buffers()["centroids"].copy_(centroids);
  Tensor x = state(20);
  const Tensor even = torch::arange(20).remainder(2).eq(0);
  x.select(2, 0).copy_(torch::where(even, 5.0F, -5.0F));
  Pass pass;
  const Tensor out = layer->forward(x, pass);
  for (int64_t first : {0, 1})
    EXPECT_TRUE(close(out.slice(1, first, 20, 2),
                      by_dense(*layer, x.slice(1, first, 20, 2)), 1e-5));
}

// Both ways of either kind, with gradients.
void expect_defined(const std::string& settings, const Tensor& real, int64_t tokens) {
  const auto layer = mixer(settings);
  convert(*layer, torch::kCPU, torch::kDouble);
  Tensors results[2];
  for (const bool fast : {true, false}) {
    Tensor x = random_tensors(1, {2, tokens, 24}, torch::kDouble)[0].requires_grad_();
    Pass pass;
    pass.mask.tokens = real;
    const Tensor out = fast ? layer->forward(x, pass) : layer->reference(x, pass);
    const auto weights = random_tensors(1, out.sizes(), torch::kDouble, /*seed=*/5)[0];
    results[fast] = {out, torch::autograd::grad({out}, {x}, {weights})[0]};
  }
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(close(results[1][i], results[0][i])) << settings << " " << tokens;
}

TEST(ClusterFormer, WindowsAndClustersAreTheirDefinitions) {
  for (const int64_t tokens : {1, 5, 8, 9, 14, 15, 40, 90}) {
    Tensor real = torch::ones({2, tokens}, torch::kBool);
    real[0].slice(0, 1, tokens, 5).fill_(false);
    real[1].slice(0, 0, tokens / 3).fill_(false);
    real[1].slice(0, tokens - tokens / 4).fill_(false);
    for (const Tensor& mask : {Tensor(), real}) {
      expect_defined("{kind: windows, window: 8, stride: 6}", mask, tokens);
      expect_defined("{kind: windows, window: 8, stride: 1}", mask, tokens);
      expect_defined("{window: 8, stride: 8, clusters: 3, bank: 9, same_cluster: true}",
                     mask, tokens);
    }
  }
}

// A pass of training in step `step`.
void train(Mixer& layer, const Tensor& x, int64_t step, bool replay = false,
           const Tensor& real = {}) {
  Pass pass;
  pass.training = true;
  pass.replay = replay;
  pass.draw = Draw(/*seed=*/1, static_cast<uint64_t>(step));
  pass.mask.tokens = real;
  layer.forward(x, pass);
}

constexpr char kTrained[] =
    "{window: 8, stride: 8, clusters: 2, bank: 16, push: 8, refresh: 3}";

TEST(ClusterFormer, CentroidsAreTheMeansOfTheBank) {
  const auto layer = mixer(kTrained);
  const auto buffer = [&](const char* name) {
    return layer->named_buffers()[name].clone();
  };
  const Tensor before = buffer("centroids");
  // Two groups of states, near to two points.
  const Tensor far = torch::arange(40).remainder(2).eq(0).view({1, 40, 1});
  const Tensor x = 0.1 * state(40, 1) + torch::where(far, 3.0F, -3.0F);
  Pass pass;
  layer->forward(x, pass);
  EXPECT_EQ(buffer("bank_count").item<int64_t>(), 0);
  for (const int64_t step : {1, 2}) train(*layer, x, step);
  EXPECT_TRUE(buffer("centroids").equal(before));
  train(*layer, x, 3, /*replay=*/true);
  EXPECT_EQ(buffer("bank_count").item<int64_t>(), 16);
  train(*layer, x, 3);
  EXPECT_EQ(buffer("bank_count").item<int64_t>(), 24);

  const Tensor bank = buffer("bank"), centroids = buffer("centroids");
  const Tensor is_far = bank.mean(1) > 0;
  const Tensor mean_far = bank.index({is_far}).mean(0),
               mean_near = bank.index({is_far.logical_not()}).mean(0);
  const int64_t first = centroids[0].mean().item<float>() > 0 ? 0 : 1;
  EXPECT_TRUE(close(centroids[first], mean_far, 1e-5));
  EXPECT_TRUE(close(centroids[1 - first], mean_near, 1e-5));

  // The oldest states went first, and the same draws give the same bank.
  const auto other = mixer(kTrained);
  for (const int64_t step : {1, 2}) train(*other, x, step);
  EXPECT_TRUE(other->named_buffers()["bank"].slice(0, 8).equal(bank.slice(0, 8)));
  train(*other, x, 3);
  EXPECT_TRUE(other->named_buffers()["centroids"].equal(centroids));
}

TEST(ClusterFormer, ABankNotYetFullCountsOnlyWhatItHolds) {
  const auto layer =
      mixer("{window: 8, stride: 8, clusters: 2, bank: 500, push: 8, refresh: 1}");
  train(*layer, torch::full({1, 20, 24}, 7.0), 1);
  EXPECT_TRUE(layer->named_buffers()["centroids"].eq(7).all().item<bool>());
}

TEST(ClusterFormer, PaddingIsNeverInTheBank) {
  const auto layer = mixer(kTrained);
  Tensor x = state(30);
  Tensor real = torch::zeros({2, 30}, torch::kBool);
  real[1].slice(0, 10, 13).fill_(true);
  x.masked_fill_(real.logical_not().unsqueeze(2), 77);
  const Tensor before = layer->named_buffers()["centroids"].clone();
  train(*layer, x, 3, /*replay=*/false, torch::zeros_like(real));
  EXPECT_EQ(layer->named_buffers()["bank_count"].item<int64_t>(), 0);
  EXPECT_TRUE(layer->named_buffers()["centroids"].equal(before));
  for (const int64_t step : {1, 2}) train(*layer, x, step, /*replay=*/false, real);
  EXPECT_EQ(layer->named_buffers()["bank_count"].item<int64_t>(), 16);
  EXPECT_TRUE(layer->named_buffers()["bank"].ne(77).all().item<bool>());
  EXPECT_TRUE(layer->named_buffers()["bank"].abs().sum(1).gt(0).all().item<bool>());
}

TEST(ClusterFormer, WindowsHaveNoBank) {
  EXPECT_TRUE(mixer("{kind: windows}")->buffers().empty());
}

TEST(ClusterFormer, RefusesWindowsWithGaps) {
  EXPECT_EQ(refusal([] { mixer("{kind: windows, window: 8, stride: 9}"); }),
            "cluster_former: stride must be at most the window of 8 tokens, got 9");
}

}  // namespace
}  // namespace longspan::testing
