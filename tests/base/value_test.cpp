#include "longspan/base/value.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

TEST(Value, ReadsEachKind) {
  EXPECT_EQ(Value::parse("128"), Value(128));
  EXPECT_EQ(Value::parse("-3"), Value(-3));
  EXPECT_EQ(Value::parse("0.5"), Value(0.5));
  EXPECT_EQ(Value::parse("1e-4"), Value(1e-4));
  EXPECT_EQ(Value::parse("true"), Value(true));
  EXPECT_EQ(Value::parse("max"), Value("max"));
  EXPECT_EQ(Value::parse("'12'"), Value("12"));
  EXPECT_EQ(Value::parse("\"true\""), Value("true"));
  EXPECT_EQ(Value::parse("[1, 2.5, local]"), Value(Value::List{1, 2.5, "local"}));
  EXPECT_EQ(Value::parse("{name: local, window: [1, 2]}"),
            Value(Value::Map{{"name", "local"}, {"window", Value::List{1, 2}}}));
  EXPECT_EQ(Value::parse("[]"), Value(Value::List{}));
}

TEST(Value, WritesWhatItReads) {
  for (const char* text :
       {"128", "0.25", "3.0", "true", "max", "\"12\"", "\"a b\"", "\"\"", "[1, [2, x]]",
        "{from: 0.2, to: 0.35}", "[]", "{}", "\"say \\\"hi\\\"\"", "\"a: b\""}) {
    const Value value = Value::parse(text);
    EXPECT_EQ(Value::parse(value.text()), value) << text;
    EXPECT_EQ(value.text(), text);
  }
}

TEST(Value, SaysWhatItCannotRead) {
  EXPECT_EQ(refusal([] { Value::parse(""); }), "cannot read '': a value is missing");
  EXPECT_EQ(refusal([] { Value::parse("{a: 1, a: 2}"); }),
            "cannot read '{a: 1, a: 2}': 'a' is given twice");
  EXPECT_EQ(refusal([] { Value::parse("[1, 2"); }).rfind("'[1, 2' is not YAML: ", 0),
            0u);
}

}  // namespace
}  // namespace longspan::testing
