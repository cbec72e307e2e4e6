#include "longspan/attention/settings.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr Setting kDeclared[] = {
    {"window", Kind::integer, "128", "keys on each side", {}, 0},
    {"sigma", Kind::number, "0.5", "width of the local bias"},
    {"shared", Kind::boolean, "false", "one projection for all heads"},
    {"pool", Kind::word, "max", "how spans are summarised", "max|mean"},
    {"shape", Kind::list, "[]", "rows and columns"},
    {"inner", Kind::mechanism, "dense", "what it wraps"},
};

Settings complete(const std::string& given, int64_t layer = 0, int64_t layers = 1) {
  return Settings::complete("test", kDeclared, *Value::parse(given).as<Value::Map>(),
                            layer, layers);
}

std::string refusal_of(const std::string& given, int64_t layers = 1) {
  return refusal([&] { complete(given, 0, layers); });
}

TEST(Settings, AreTheStandardOnesUnlessGiven) {
  const Settings settings = complete("{}");
  EXPECT_EQ(settings.integer("window"), 128);
  EXPECT_EQ(settings.number("sigma"), 0.5);
  EXPECT_FALSE(settings.flag("shared"));
  EXPECT_EQ(settings.word("pool"), "max");
  EXPECT_TRUE(settings.list("shape").empty());
  EXPECT_EQ(settings.mechanism("inner").name, "dense");
}

TEST(Settings, AreReplacedByThoseGiven) {
  const Settings settings = complete(
      "{window: 3, sigma: 2, shared: true, pool: mean, shape: [4, 8], "
      "inner: {name: local, window: 9}}");
  EXPECT_EQ(settings.integer("window"), 3);
  EXPECT_EQ(settings.number("sigma"), 2.0);
  EXPECT_TRUE(settings.flag("shared"));
  EXPECT_EQ(settings.word("pool"), "mean");
  EXPECT_EQ(settings.list("shape"), (Value::List{4, 8}));
  EXPECT_EQ(settings.mechanism("inner").name, "local");
  EXPECT_EQ(settings.mechanism("inner").settings, (Value::Map{{"window", 9}}));
}

TEST(Settings, MayBeOneValueALayer) {
  const std::string given =
      "{window: [8, 16, 32], sigma: {from: 0.2, to: 0.4}, shape: [[1], [2], [3]], "
      "inner: [dense, local, dense], pool: [max, mean, max]}";
  for (int64_t layer = 0; layer < 3; ++layer) {
    const Settings settings = complete(given, layer, 3);
    EXPECT_EQ(settings.integer("window"), 8 << layer);
    EXPECT_NEAR(settings.number("sigma"), 0.2 + 0.1 * layer, 1e-15);
    EXPECT_EQ(settings.list("shape"), (Value::List{layer + 1}));
    EXPECT_EQ(settings.mechanism("inner").name, layer == 1 ? "local" : "dense");
    EXPECT_EQ(settings.word("pool"), layer == 1 ? "mean" : "max");
  }
  EXPECT_EQ(complete("{window: {from: 10, to: 20}}", 1, 4).integer("window"), 13);
  EXPECT_EQ(complete("{sigma: {from: 1, to: 2}}").number("sigma"), 1.0);
}

TEST(Settings, RefuseWhatIsNotDeclaredOrDoesNotFit) {
  EXPECT_EQ(
      refusal_of("{windw: 3}"),
      "test: no setting 'windw'; did you mean 'window'? there are: window, sigma, "
      "shared, pool, shape, inner");
  EXPECT_EQ(refusal_of("{window: wide}"),
            "test: window must be a whole number, got wide");
  EXPECT_EQ(refusal_of("{window: 2.5}"),
            "test: window must be a whole number, got 2.5");
  EXPECT_EQ(refusal_of("{window: -1}"), "test: window must be 0 or more, got -1");
  EXPECT_EQ(refusal_of("{sigma: true}"), "test: sigma must be a number, got true");
  EXPECT_EQ(refusal_of("{shared: 1}"), "test: shared must be true or false, got 1");
  EXPECT_EQ(refusal_of("{pool: man}"),
            "test: pool: no choice 'man'; did you mean 'max'? there are: max, mean");
  EXPECT_EQ(refusal_of("{shape: 4}"), "test: shape must be a list, got 4");
  EXPECT_EQ(refusal_of("{inner: {window: 4}}"),
            "test: inner must be the name of a mechanism or {name: .., setting: ..}, "
            "got {window: 4}");
  EXPECT_EQ(refusal_of("{window: [1, 2]}", 3),
            "test: window as a list must have one value for each of the 3 layers, got "
            "[1, 2]");
  EXPECT_EQ(refusal_of("{window: {from: 1, until: 2}}"),
            "test: window must be a whole number, got {from: 1, until: 2}");
}

}  // namespace
}  // namespace longspan::testing
