#include <algorithm>
#include <set>

#include "longspan/attention/mechanism.h"
#include "longspan/base/words.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Catalogue, NamesTheChoicesWhenItKnowsNone) {
  const std::string message = refusal([] { find_mechanism("dens"); });
  EXPECT_EQ(message.rfind("no mechanism called 'dens'; did you mean 'dense'?", 0), 0u)
      << message;
  for (const Mechanism* mechanism : mechanisms())
    EXPECT_NE(message.find(mechanism->name), std::string::npos) << message;
}

TEST(Catalogue, HasCompleteRows) {
  std::set<std::string_view> names;
  for (const Mechanism* row : mechanisms()) {
    EXPECT_TRUE(names.insert(row->name).second) << row->name << " is there twice";
    EXPECT_EQ(&find_mechanism(row->name), row);
    EXPECT_FALSE(row->summary.empty()) << row->name;
    EXPECT_FALSE(row->paper.empty()) << row->name;
    EXPECT_FALSE(row->classes.empty()) << row->name;
    EXPECT_FALSE(row->time.formula.empty()) << row->name;
    EXPECT_FALSE(row->memory.formula.empty()) << row->name;
    EXPECT_EQ(row->can.decoding, row->state_size != nullptr) << row->name;
    EXPECT_EQ(row->can.decoding, !row->state.empty()) << row->name;
    EXPECT_TRUE(!row->can.decoding || row->can.causal != Causal::never) << row->name;
    for (const Setting& setting : row->settings) {
      EXPECT_FALSE(setting.help.empty()) << row->name << ": " << setting.name;
      EXPECT_NO_THROW(Value::parse(std::string(setting.standard)));
    }
    EXPECT_NO_THROW(Settings::complete(row->name, row->settings, {}));
    for (const Preset& named : row->presets)
      EXPECT_NO_THROW(
          Settings::complete(row->name, row->settings, preset(*row, named.name)));
  }
}

constexpr Preset kPresets[] = {{"lra", "{block: 50}"}, {"paper", "{block: 64}"}};

TEST(Catalogue, ReadsPresets) {
  Mechanism row = catalogue::dense;
  row.presets = kPresets;
  EXPECT_EQ(preset(row, "lra"), (Value::Map{{"block", 50}}));
  EXPECT_EQ(refusal([&] { preset(row, "lr"); }),
            "dense: no preset 'lr'; did you mean 'lra'? there are: lra, paper");
}

TEST(Make, RefusesTheWrongSeam) {
  EXPECT_EQ(refusal([] { make<Mixer>(catalogue::dense, {}); }),
            "dense: fills the seam attention, asked for mixer");
}

TEST(Make, RefusesSettingsTheRowDoesNotHave) {
  EXPECT_EQ(refusal([] {
              make<Attention>(catalogue::dense, {}, {{"window", 3}});
            }),
            "dense: no setting 'window'; there are none");
}

TEST(Make, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(refusal([] { make<Attention>(catalogue::dense, {.heads = 0}); }),
            "sizes: heads and head_width must be 1 or more, got 0 and 64");
  EXPECT_EQ(
      refusal([] { make<Attention>(catalogue::dense, {.heads = 4, .key_heads = 3}); }),
      "sizes: key_heads must be a divisor of the 4 heads, got 3");
  EXPECT_EQ(
      refusal([] { make<Attention>(catalogue::dense, {.layer = 2, .layers = 2}); }),
      "sizes: layer must be 0 or more and less than layers, got 2 of 2");
}

TEST(Sizes, FillTheirZeros) {
  const Sizes sizes = Sizes{.heads = 6, .head_width = 8}.completed();
  EXPECT_EQ(sizes.embedding, 48);
  EXPECT_EQ(sizes.key_heads, 6);
  EXPECT_EQ(sizes.value_width, 8);
}

TEST(Shared, MakesAParameterOnceForAllLayers) {
  Shared shared;
  int made = 0;
  const auto make = [&] {
    ++made;
    return torch::ones(3);
  };
  EXPECT_TRUE(shared.empty());
  const Tensor first = shared.parameter("e", make),
               second = shared.parameter("e", make);
  EXPECT_EQ(made, 1);
  EXPECT_TRUE(first.is_same(second));
  EXPECT_EQ(shared.parameters().size(), 1u);
  EXPECT_TRUE(shared.buffer("b", make).is_same(shared.buffer("b", make)));
  EXPECT_EQ(made, 2);
}

class WithBuffers : public torch::nn::Module {
 public:
  WithBuffers() {
    register_parameter("weight", torch::ones(2));
    register_buffer("ids", torch::full({1}, 299, torch::kLong));
  }
};

TEST(Convert, LeavesWholeNumbersWhole) {
  WithBuffers module;
  convert(module, torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(module.parameters()[0].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(module.buffers()[0].scalar_type(), torch::kLong);
  EXPECT_EQ(module.buffers()[0].item<int64_t>(), 299);
}

}  // namespace
}  // namespace longspan::testing
