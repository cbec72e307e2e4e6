#include "longspan/base/tensor_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr torch::Dtype kDtypes[] = {
    torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong,
    torch::kInt,   torch::kShort,  torch::kChar, torch::kByte,     torch::kBool};

std::string length_of(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

// A file with this header and `data` bytes after it.
std::string with_header(const std::string& header, int data = 0) {
  return length_of(header.size()) + header + std::string(data, '\0');
}

class ATensorFile : public ::testing::Test {
 protected:
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return (std::ostringstream() << file.rdbuf()).str();
  }
  void put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  TensorFile again(const NamedTensors& tensors,
                   const std::map<std::string, std::string>& notes = {}) const {
    write_tensors(path_, tensors, notes);
    return read_tensors(path_);
  }
  // What reading a file of these bytes says, without its path.
  std::string refusal_of(const std::string& bytes) const {
    put(bytes);
    const std::string message = refusal([&] { read_tensors(path_); });
    const std::string begin = path_ + ": ";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  }

  const Folder folder_;
  const std::string path_ = folder_ / "some.safetensors";
};

::testing::AssertionResult same(const Tensor& got, const Tensor& expected) {
  if (got.scalar_type() == expected.scalar_type() && got.is_contiguous() &&
      got.device().is_cpu() && got.sizes() == expected.sizes() &&
      torch::equal(got, expected.cpu()))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << "\nis not\n" << expected;
}

TEST_F(ATensorFile, KeepsEveryTypeShapeAndStride) {
  for (const auto device : devices()) {
    NamedTensors tensors;
    for (const auto dtype : kDtypes) {
      torch::manual_seed(1);
      const auto some = (torch::randn({3, 4, 5}) * 50).to(dtype).to(device);
      const std::string name = torch::toString(dtype);
      tensors[name] = some;
      tensors[name + ".scalar"] = some[1][2][3];
      tensors[name + ".empty"] = some.narrow(1, 2, 0);
      tensors[name + ".turned"] = some.transpose(0, 2);
      tensors[name + ".every_second"] = some.slice(2, 1, 5, 2);
      tensors[name + ".repeated"] = some.select(0, 1).unsqueeze(0).expand({2, 4, 5});
    }
    const auto read = again(tensors);
    ASSERT_EQ(read.tensors.size(), tensors.size());
    for (const auto& [name, tensor] : tensors)
      EXPECT_TRUE(same(read.tensors.at(name), tensor)) << name;
    EXPECT_TRUE(read.notes.empty());
  }
  EXPECT_EQ(folder_.entries(), 1);
}

TEST_F(ATensorFile, KeepsBitsAndLeavesTheGraphBehind) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto odd = torch::tensor({-0.f, infinity, -infinity, 1e-45f, NAN});
  const auto negative = torch::imag(torch::conj(
      torch::view_as_complex(torch::tensor({1.f, 2.f, 3.f, 4.f}).view({2, 2}))));
  const auto read = again({{"odd", odd.clone().requires_grad_()}, {"-", negative}});
  EXPECT_TRUE(
      torch::equal(read.tensors.at("odd").view(torch::kInt), odd.view(torch::kInt)));
  EXPECT_FALSE(read.tensors.at("odd").requires_grad());
  EXPECT_TRUE(torch::equal(read.tensors.at("-"), torch::tensor({-2.f, -4.f})));
}

TEST_F(ATensorFile, KeepsNamesAndNotes) {
  const std::map<std::string, std::string> notes = {
      {"format", "pt"}, {"", ""}, {"äö \"\\\n\t", std::string("a\0b", 3)}};
  const auto one = torch::ones(1);
  const auto read = again({{"", one}, {"a\"b\\c\n", one}, {"ü.β", one}}, notes);
  EXPECT_EQ(read.notes, notes);
  EXPECT_EQ(read.tensors.size(), 3u);
  EXPECT_EQ(read.tensors.count("ü.β"), 1u);
  EXPECT_EQ(again({}, notes).notes, notes);
  EXPECT_TRUE(again({}).tensors.empty());
}

TEST_F(ATensorFile, MayHaveManyTensors) {
  NamedTensors tensors;
  for (int i = 0; i < 20000; ++i) tensors[std::to_string(i)] = torch::tensor(i);
  const auto read = again(tensors);
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : read.tensors)
    ASSERT_EQ(std::to_string(tensor.item<int64_t>()), name);
}

TEST_F(ATensorFile, HasTheLayoutOtherProgramsRead) {
  write_tensors(path_,
                {{"a", torch::tensor({1, -1}, torch::kChar)},
                 {"b", torch::tensor({{1.f, 2.f}, {3.f, -4.f}}).t()},
                 {"c", torch::tensor(int64_t{258})},
                 {"d", torch::tensor({true, false})},
                 {"e", torch::empty({0, 7}, torch::kHalf)}},
                {{"by", "us"}});
  std::string header = R"({"__metadata__":{"by":"us"},)"
                       R"("a":{"data_offsets":[24,26],"dtype":"I8","shape":[2]},)"
                       R"("b":{"data_offsets":[8,24],"dtype":"F32","shape":[2,2]},)"
                       R"("c":{"data_offsets":[0,8],"dtype":"I64","shape":[]},)"
                       R"("d":{"data_offsets":[26,28],"dtype":"BOOL","shape":[2]},)"
                       R"("e":{"data_offsets":[24,24],"dtype":"F16","shape":[0,7]}})";
  while (header.size() % 8 != 0) header += ' ';
  const char data[] =
      "\x02\x01\0\0\0\0\0\0"                            // 258
      "\0\0\x80\x3f\0\0\x40\x40\0\0\0\x40\0\0\x80\xc0"  // 1, 3, 2, -4
      "\x01\xff\x01";                                   // the last 0 ends the text
  EXPECT_EQ(content(), length_of(header.size()) + header + std::string(data, 28));
  const std::pair<torch::Dtype, std::string> types[] = {
      {torch::kFloat, "F32"},     {torch::kDouble, "F64"}, {torch::kHalf, "F16"},
      {torch::kBFloat16, "BF16"}, {torch::kLong, "I64"},   {torch::kInt, "I32"},
      {torch::kShort, "I16"},     {torch::kChar, "I8"},    {torch::kByte, "U8"},
      {torch::kBool, "BOOL"}};
  for (const auto& [dtype, name] : types) {
    write_tensors(path_, {{"x", torch::zeros(1, dtype)}});
    EXPECT_NE(content().find("\"dtype\":\"" + name + "\""), std::string::npos) << name;
  }
}

TEST_F(ATensorFile, MayHaveAnyOrder) {
  const std::string header =
      R"({"b" : {"shape": [2], "dtype": "U8", "data_offsets": [1, 3]},
          "none": {"dtype": "F64", "data_offsets": [1, 1], "shape": [0]},
          "a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}  )";
  put(length_of(header.size()) + header + "\x07\x08\x09");
  const auto read = read_tensors(path_);
  EXPECT_TRUE(same(read.tensors.at("a"), torch::tensor(7, torch::kByte)));
  EXPECT_TRUE(same(read.tensors.at("b"), torch::tensor({8, 9}, torch::kByte)));
  EXPECT_TRUE(same(read.tensors.at("none"), torch::empty(0, torch::kDouble)));
}

TEST_F(ATensorFile, RefusesWrongFiles) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "must begin with the length of its header, 8 bytes, has 0 bytes"},
      {"1234567", "must begin with the length of its header, 8 bytes, has 7 bytes"},
      {length_of(3) + "{}", "the header must have 3 bytes, the file ends after 2"},
      {length_of(~uint64_t{0}) + "{}",
       "the header must have 18446744073709551615 bytes, the file ends after 2"},
      {with_header("{}", 1),
       "the tensors have 0 bytes, the file has 1 after its header"},
      {with_header(""), "the header must begin with '{'"},
      {with_header("[]"), "the header must begin with '{'"},
      {with_header("\xef\xbb\xbf{}"), "the header must begin with '{'"},
  };
  for (const auto& [bytes, message] : cases) EXPECT_EQ(refusal_of(bytes), message);
}

TEST_F(ATensorFile, RefusesWrongHeaders) {
  const std::string needs =
      "tensor 'a': must have 'dtype', 'shape' and 'data_offsets', nothing else";
  const std::string numbers =
      " must be a list of whole numbers from 0 to 2^63 - 1, got ";
  const std::pair<std::string, std::string> cases[] = {
      {"{", "the header is not valid JSON: it goes wrong at byte 1"},
      {"{} x", "the header is not valid JSON: it goes wrong at byte 3"},
      {"{,}", "the header is not valid JSON: it goes wrong at byte 1"},
      {"{\"\xff\":1}", "the header is not valid JSON: it goes wrong at byte 2"},
      {std::string("{}\0x", 4),
       "the header is not valid JSON: it goes wrong at byte 2"},
      {R"({"a":1e999})", "the header is not valid JSON: it goes wrong at byte 9"},
      {R"({"a":[[[1]]]})", "the header is nested too deep"},
      {R"({"a":{"b":{}}})", "the header is nested too deep"},
      {R"({"a":{},"a":{}})", "the header has 'a' twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"dtype":"I8"}})",
       "the header has 'dtype' twice"},
      {R"({"__metadata__":{"b":"1","b":"2"}})", "the header has 'b' twice"},
      {R"({"__metadata__":"b"})", "'__metadata__' must be an object of strings"},
      {R"({"__metadata__":{"b":1}})", "the note 'b' must be a string"},
      {R"({"a":1})", needs},
      {R"({"a":{}})", needs},
      {R"({"a":{"dtype":"U8","shape":[1]}})", needs},
      {R"({"a":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", needs},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", needs},
      {R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})",
       "tensor 'a': 'dtype' must be a string"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,1]}})",
       "tensor 'a': no type 'F31'; did you mean 'F32'? there are: F32, F64, F16, BF16, "
       "I64, I32, I16, I8, U8, BOOL"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})",
       "tensor 'a': 'shape'" + numbers + "1"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
       "tensor 'a': 'shape'" + numbers + "[-1]"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})",
       "tensor 'a': 'shape'" + numbers + "[1.0]"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})",
       "tensor 'a': 'shape'" + numbers + "[9223372036854775808]"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,"1"]}})",
       "tensor 'a': 'data_offsets'" + numbers + "[0,\"1\"]"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})",
       "tensor 'a': the shape [4294967296, 4294967296] has too many elements"},
      {R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,1]}})",
       "tensor 'a': the shape [1152921504606846976] has too many elements"},
      {R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})",
       "tensor 'a': the shape [0, 4294967296, 4294967296] has too many elements"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1]}})",
       "tensor 'a': 'data_offsets' must be a begin and an end, got [1]"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})",
       "tensor 'a': 'data_offsets' must be a begin and an end, got [1, 0]"},
      {R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,1]}})",
       "tensor 'a': a F32 tensor of shape [1, 2] has 8 bytes, 'data_offsets' gives 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "tensor 'a': must begin at byte 0, where the one before ends, begins at 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "tensor 'b': must begin at byte 2, where the one before ends, begins at 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       "tensor 'b': must begin at byte 2, where the one before ends, begins at 3"},
      {R"({"a":{"dtype":"U8","shape":[9000000000000000000],)"
       R"("data_offsets":[0,9000000000000000000]}})",
       "the tensors have 9000000000000000000 bytes, the file has 1 after its header"},
      {R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", "accepted"},
  };
  for (const auto& [header, message] : cases)
    EXPECT_EQ(refusal_of(with_header(header, 1)), message) << header;
}

TEST_F(ATensorFile, RefusesWhatIsTooMuch) {
  std::string deep = "{\"a\":", ones = "1", name(100, 'n');
  for (int i = 0; i < 1000000; ++i) deep += '[';
  EXPECT_EQ(refusal_of(with_header(deep)), "the header is nested too deep");
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_EQ(refusal_of(with_header(R"({"a":{"dtype":"U8","shape":[)" + ones +
                                   R"(],"data_offsets":[0,1]}})")),
            "tensor 'a': may have 64 dimensions at most, got 65");
  EXPECT_EQ(refusal_of(with_header("{\"" + name + "\":1}")),
            "tensor '" + name.substr(0, 60) +
                "...': must have 'dtype', 'shape' and 'data_offsets', nothing else");
  put(length_of(100'000'001) + "{");
  ASSERT_EQ(truncate(path_.c_str(), 200'000'000), 0);
  EXPECT_EQ(refusal([&] { read_tensors(path_); }),
            path_ + ": the header may have 100000000 bytes at most, got 100000001");
}

TEST_F(ATensorFile, HasNoTruthBetweenTrueAndFalse) {
  const std::string header =
      R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  EXPECT_EQ(refusal_of(length_of(header.size()) + header + "\x01\x02"),
            "tensor 'a': a truth value must be 0 or 1");
}

TEST_F(ATensorFile, SaysWhatItCannotReadOrWrite) {
  const std::string nowhere = "/nowhere/a.safetensors";
  EXPECT_EQ(refusal([&] { read_tensors(nowhere); }),
            "cannot read " + nowhere + ": No such file or directory");
  EXPECT_EQ(refusal([&] { write_tensors(nowhere, {}); }),
            "cannot write " + nowhere + ": No such file or directory");
  EXPECT_EQ(refusal([&] { read_tensors(folder_ / "."); }),
            folder_ / "." + ": must be a file, is a folder or a device");

  const auto refusal_to_write =
      [&](const NamedTensors& tensors,
          const std::map<std::string, std::string>& notes = {}) {
        return refusal([&] { write_tensors(path_, tensors, notes); });
      };
  const std::string begin = "cannot write " + path_ + ": ";
  const auto one = torch::ones(1);
  EXPECT_EQ(refusal_to_write({{"a", {}}}),
            begin + "tensor 'a' must be defined and dense");
  EXPECT_EQ(refusal_to_write({{"a", one.to_sparse()}}),
            begin + "tensor 'a' must be defined and dense");
  EXPECT_EQ(
      refusal_to_write({{"a", one.to(torch::kComplexFloat)}}),
      begin + "tensor 'a' has the type ComplexFloat, which such files do not have");
  EXPECT_EQ(refusal_to_write({{"__metadata__", one}}),
            begin + "tensor '__metadata__' has the name of the notes");
  EXPECT_EQ(refusal_to_write({{"\xff", one}}), begin + "names and notes must be UTF-8");
  EXPECT_EQ(refusal_to_write({}, {{"a", "\xff"}}),
            begin + "names and notes must be UTF-8");
  EXPECT_EQ(folder_.entries(), 0);
}

class ADamagedTensorFile : public ATensorFile {
 protected:
  ADamagedTensorFile() {
    write_tensors(path_,
                  {{"a", torch::arange(6, torch::kFloat).view({2, 3})},
                   {"b", torch::tensor({true, false})},
                   {"c", torch::empty({0, 2}, torch::kLong)}},
                  {{"by", "us"}});
    whole_ = content();
  }

  // True if refused; what is not must be whole. Anything but an Error ends the test.
  bool refused(const std::string& bytes) const {
    put(bytes);
    try {
      uint64_t data = 0;
      for (const auto& [name, tensor] : read_tensors(path_).tensors)
        data += tensor.nbytes();
      EXPECT_EQ(data, 26u);
      return false;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path_)) << error.what();
      return true;
    }
  }

  std::string whole_;
};

TEST_F(ADamagedTensorFile, IsRefusedWhereverItIsCut) {
  for (size_t size = 0; size < whole_.size(); ++size)
    EXPECT_TRUE(refused(whole_.substr(0, size))) << size;
  EXPECT_TRUE(refused(whole_ + '\0'));
  EXPECT_FALSE(refused(whole_));
}

TEST_F(ADamagedTensorFile, IsRefusedOrReadWhicheverByteIsWrong) {
  for (size_t i = 0; i < whole_.size(); ++i) {
    std::string bytes = whole_;
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<char>(whole_[i] ^ (1 << bit));
      refused(bytes);
    }
    for (const char other : std::string_view("\0{}[]\",:-.0 e\\\xff", 15)) {
      bytes[i] = other;
      refused(bytes);
    }
    refused(std::string(whole_).erase(i, 1));
    refused(std::string(whole_).insert(i, 1, '0'));
  }
}

}  // namespace
}  // namespace longspan::testing
