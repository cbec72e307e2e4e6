#include "longspan/base/tensor_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"

namespace longspan {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the numbers of a file are written and read as they are in memory");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // other programs read no longer one
constexpr size_t kMostDimensions = 64;            // as in LibTorch
constexpr char kNotes[] = "__metadata__";

struct Type {
  const char* name;
  torch::Dtype dtype;
};
constexpr Type kTypes[] = {{"F32", torch::kFloat}, {"F64", torch::kDouble},
                           {"F16", torch::kHalf},  {"BF16", torch::kBFloat16},
                           {"I64", torch::kLong},  {"I32", torch::kInt},
                           {"I16", torch::kShort}, {"I8", torch::kChar},
                           {"U8", torch::kByte},   {"BOOL", torch::kBool}};

// A name as a message shows it: files may hold very long ones.
std::string shown(std::string_view name) {
  constexpr size_t kMost = 60;
  if (name.size() <= kMost) return "'" + std::string(name) + "'";
  return "'" + std::string(name.substr(0, kMost)) + "...'";
}

const char* type_name(torch::Dtype dtype) {
  const auto found = std::ranges::find(kTypes, dtype, &Type::dtype);
  return found == std::end(kTypes) ? nullptr : found->name;
}

torch::Dtype type_of(const std::string& name) {
  const auto found = std::ranges::find(kTypes, std::string_view(name), &Type::name);
  if (found != std::end(kTypes)) return found->dtype;
  std::vector<std::string> known;
  for (const auto& type : kTypes) known.emplace_back(type.name);
  fail("no type ", shown(name), hint(name.substr(0, 20), known));
}

// An existing file, read from its beginning on.
class Source {
 public:
  explicit Source(const std::string& path) : file_(std::fopen(path.c_str(), "rbe")) {
    if (!file_) fail("cannot read ", path, ": ", std::strerror(errno));
  }
  ~Source() { std::fclose(file_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  uint64_t size() const {
    struct stat about = {};
    const bool known = fstat(fileno(file_), &about) == 0;
    require(known, "cannot be read: ", std::strerror(errno));
    require(S_ISREG(about.st_mode), "must be a file, is a folder or a device");
    return static_cast<uint64_t>(about.st_size);
  }

  void read(void* to, size_t count) {
    if (count == 0 || std::fread(to, 1, count, file_) == count) return;
    fail("cannot be read: ",
         std::ferror(file_) ? std::strerror(errno) : "it became shorter meanwhile");
  }

 private:
  std::FILE* file_;
};

struct Entry {
  std::string name;
  torch::Dtype dtype;
  std::vector<int64_t> shape;
  int64_t begin, end;  // in bytes after the header
};

// Passes over a header and refuses what no header has: wrong JSON, deep nesting, one
// key twice. The parser would keep the last of two.
class HeaderCheck : public json::json_sax_t {
 public:
  bool start_object(size_t) override {
    require(depth_ < 2, "the header is nested too deep");
    keys_[depth_++].clear();
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override {
    require(depth_ < 3, "the header is nested too deep");
    return ++depth_, true;
  }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& key) override {
    if (!keys_[depth_ - 1].insert(key).second)
      fail("the header has ", shown(key), " twice");
    return true;
  }
  bool parse_error(size_t count, const std::string&, const json::exception&) override {
    fail("the header is not valid JSON: it goes wrong at byte ", count - 1);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }

 private:
  int depth_ = 0;
  std::set<std::string> keys_[2];  // of the open objects
};

json parsed_header(const std::string& text) {
  // The parser skips a byte order mark and takes a zero for the end of the text.
  require(text.starts_with('{'), "the header must begin with '{'");
  const size_t zero = text.find('\0');
  require(zero == text.npos, "the header is not valid JSON: it goes wrong at byte ",
          zero);
  HeaderCheck check;
  json::sax_parse(text, &check);
  return json::parse(text);
}

std::vector<int64_t> whole_numbers(const json& list, const char* key) {
  std::vector<int64_t> numbers;
  bool right = list.is_array();
  for (size_t i = 0; right && i < list.size(); ++i) {
    constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
    right = list[i].is_number_unsigned() && list[i].get<uint64_t>() <= kLargest;
    if (right) numbers.push_back(list[i].get<int64_t>());
  }
  if (!right)
    fail("'", key, "' must be a list of whole numbers from 0 to 2^63 - 1, got ",
         list.dump().substr(0, 60));
  return numbers;
}

// The bytes of a tensor of this shape. Empty dimensions count as 1 on the way, as in
// strides: these must not overflow either.
int64_t bytes_of(const std::vector<int64_t>& shape, torch::Dtype dtype) {
  auto bytes = static_cast<int64_t>(torch::elementSize(dtype));
  bool fits = true, empty = false;
  for (const int64_t size : shape) {
    fits = fits && !__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
    empty = empty || size == 0;
  }
  if (!fits) fail("the shape ", at::IntArrayRef(shape), " has too many elements");
  return empty ? 0 : bytes;
}

Entry entry_of(const std::string& name, const json& about) {
  require(about.is_object() && about.size() == 3 && about.contains("dtype") &&
              about.contains("shape") && about.contains("data_offsets"),
          "must have 'dtype', 'shape' and 'data_offsets', nothing else");
  require(about["dtype"].is_string(), "'dtype' must be a string");
  const auto dtype = type_of(about["dtype"].get<std::string>());
  auto shape = whole_numbers(about["shape"], "shape");
  require(shape.size() <= kMostDimensions, "may have ", kMostDimensions,
          " dimensions at most, got ", shape.size());
  const auto offsets = whole_numbers(about["data_offsets"], "data_offsets");
  require(offsets.size() == 2 && offsets[0] <= offsets[1],
          "'data_offsets' must be a begin and an end, got ", at::IntArrayRef(offsets));
  const int64_t bytes = bytes_of(shape, dtype);
  require(offsets[1] - offsets[0] == bytes, "a ", type_name(dtype), " tensor of shape ",
          at::IntArrayRef(shape), " has ", bytes, " bytes, 'data_offsets' gives ",
          offsets[1] - offsets[0]);
  return {name, dtype, std::move(shape), offsets[0], offsets[1]};
}

// The tensors in the order of their data, which is without holes or overlaps and has
// `bytes` bytes.
std::vector<Entry> entries_of(const json& header, uint64_t bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, about] : header.items()) {
    if (name == kNotes) continue;
    try {
      entries.push_back(entry_of(name, about));
    } catch (const Error& error) {
      fail("tensor ", shown(name), ": ", error.what());
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) {
    return std::pair(entry.begin, entry.end);
  });
  int64_t end = 0;
  for (const auto& entry : entries) {
    if (entry.begin != end)
      fail("tensor ", shown(entry.name), ": must begin at byte ", end,
           ", where the one before ends, begins at ", entry.begin);
    end = entry.end;
  }
  require(static_cast<uint64_t>(end) == bytes, "the tensors have ", end,
          " bytes, the file has ", bytes, " after its header");
  return entries;
}

std::map<std::string, std::string> notes_of(const json& header) {
  std::map<std::string, std::string> notes;
  if (!header.contains(kNotes)) return notes;
  require(header[kNotes].is_object(), "'", kNotes, "' must be an object of strings");
  for (const auto& [name, note] : header[kNotes].items()) {
    if (!note.is_string()) fail("the note ", shown(name), " must be a string");
    notes[name] = note.get<std::string>();
  }
  return notes;
}

torch::Tensor read_one(Source& file, const Entry& entry) {
  torch::Tensor tensor;
  const auto bytes = static_cast<size_t>(entry.end - entry.begin);
  try {
    tensor = torch::empty(entry.shape, entry.dtype);
  } catch (const c10::Error&) {
    fail("tensor ", shown(entry.name), ": no memory for its ", bytes, " bytes");
  }
  file.read(tensor.data_ptr(), bytes);
  if (entry.dtype == torch::kBool) {
    const auto* values = static_cast<const uint8_t*>(tensor.data_ptr());
    if (std::any_of(values, values + bytes, [](uint8_t value) { return value > 1; }))
      fail("tensor ", shown(entry.name), ": a truth value must be 0 or 1");
  }
  return tensor;
}

TensorFile read_all(Source& file) {
  const uint64_t size = file.size();
  require(size >= kLengthBytes, "must begin with the length of its header, 8 bytes, ",
          "has ", size, " bytes");
  uint64_t length = 0;
  file.read(&length, kLengthBytes);
  require(length <= size - kLengthBytes, "the header must have ", length,
          " bytes, the file ends after ", size - kLengthBytes);
  require(length <= kLongestHeader, "the header may have ", kLongestHeader,
          " bytes at most, got ", length);
  std::string text(length, ' ');
  file.read(text.data(), length);

  const json header = parsed_header(text);
  TensorFile result;
  result.notes = notes_of(header);
  for (const auto& entry : entries_of(header, size - kLengthBytes - length))
    result.tensors[entry.name] = read_one(file, entry);
  return result;
}

}  // namespace

void write_tensors(const std::string& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& notes) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& named : tensors) {
    const auto& [name, tensor] = named;
    const std::string what = "cannot write " + path + ": tensor " + shown(name);
    require(name != kNotes, what, " has the name of the notes");
    require(tensor.defined() && tensor.layout() == torch::kStrided, what,
            " must be defined and dense");
    require(type_name(tensor.scalar_type()) != nullptr, what, " has the type ",
            tensor.scalar_type(), ", which such files do not have");
    order.push_back(&named);
  }
  // Wide types first, so that all data is aligned.
  std::ranges::stable_sort(order, std::greater{}, [](const auto* named) {
    return named->second.element_size();
  });

  json header = json::object();
  if (!notes.empty()) header[kNotes] = notes;
  size_t end = 0;
  for (const auto* named : order) {
    const auto& tensor = named->second;
    const size_t begin = end;
    end += tensor.nbytes();
    auto& about = header[named->first];
    about["dtype"] = type_name(tensor.scalar_type());
    about["shape"] = tensor.sizes().vec();
    about["data_offsets"] = {begin, end};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail("cannot write ", path, ": names and notes must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(text.size() <= kLongestHeader, "cannot write ", path,
          ": the names, shapes and notes may take ", kLongestHeader,
          " bytes at most, got ", text.size());

  WholeFile file(path);
  const uint64_t length = text.size();
  file.write({reinterpret_cast<const char*>(&length), kLengthBytes});
  file.write(text);
  for (const auto* named : order) {
    const auto tensor = named->second.detach().cpu().resolve_neg().contiguous();
    if (tensor.numel() > 0)
      file.write({static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()});
  }
  file.commit();
}

TensorFile read_tensors(const std::string& path) {
  Source file(path);
  try {
    return read_all(file);
  } catch (const Error& error) {
    fail(path, ": ", error.what());
  }
}

}  // namespace longspan
