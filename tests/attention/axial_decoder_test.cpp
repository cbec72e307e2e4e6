#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Stack> decoder(const std::string& settings, int64_t longest = 64) {
  torch::manual_seed(1);
  return make<Stack>(catalogue::axial_decoder,
                     {.embedding = 8, .heads = 2, .head_width = 4, .longest = longest},
                     *Value::parse(settings).as<Value::Map>());
}

// Which tokens the output at `token` depends on.
std::vector<int64_t> seen(Stack& stack, int64_t tokens, int64_t token) {
  const auto x = torch::randn({1, tokens, 8}).requires_grad_();
  Pass pass;
  pass.mask.causal = true;
  const auto slope = torch::autograd::grad(
      {stack.forward(x, pass).x[0][token].square().sum()}, {x})[0];
  const auto at = (slope[0] != 0).any(1).nonzero().flatten().contiguous();
  return {at.data_ptr<int64_t>(), at.data_ptr<int64_t>() + at.numel()};
}

TEST(AxialDecoder, SeesEveryTokenBeforeAndNotItself) {
  const auto stack = decoder("{width: 5, outer: 1, inner: 1}");
  for (const int64_t token : {0, 1, 4, 5, 6, 13, 19, 22})
    EXPECT_EQ(std::ssize(seen(*stack, 23, token)), token) << token;
}

TEST(AxialDecoder, WithoutOuterLayersSeesItsRowAndWhatIsRightAboveIt) {
  const auto stack = decoder("{width: 5, outer: 0, inner: 2}");
  EXPECT_EQ(seen(*stack, 20, 13), (std::vector<int64_t>{5, 6, 7, 8, 10, 11, 12}));
  EXPECT_EQ(seen(*stack, 20, 10), (std::vector<int64_t>{5}));
}

TEST(AxialDecoder, RefusesLongerSequencesThanItIsMadeFor) {
  Pass pass;
  pass.mask.causal = true;
  EXPECT_EQ(refusal([&] {
              decoder("{width: 5}", 20)->forward(torch::zeros({1, 21, 8}), pass);
            }),
            "axial_decoder: made for sequences of 20 tokens, got 21");
  EXPECT_EQ(refusal([] { decoder("{}", 0); }),
            "axial_decoder: the longest sequence must be known, for the positions of "
            "rows");
}

}  // namespace
}  // namespace longspan::testing
