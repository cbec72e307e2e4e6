#include "longspan/data/text_files.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"
#include "longspan/data/table.h"
#include "longspan/data/tar.h"

namespace longspan {
namespace {

using Take = std::function<void(const TextPart&)>;

constexpr std::string_view kDocument = "<doc ", kDocumentEnd = "</doc>";

bool is_table(const std::string& path) {
  const std::string name = unpacked_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".json") ||
         name.ends_with(".tsv") || name.ends_with(".csv");
}

enum class Layout { plain, table, extracted, archive };

Layout layout_of(const std::string& path) {
  if (is_table(path)) return Layout::table;
  std::string begin(kTarBlock, '\0');
  begin.resize(open_bytes(path)->read(begin.data(), begin.size()));
  if (begins_archive(begin)) return Layout::archive;
  return begin.starts_with(kDocument) ? Layout::extracted : Layout::plain;
}

bool is_folder(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// All files below a folder but those hidden, in the order of their names.
void add_files(const std::string& folder, std::vector<std::string>& files) {
  // Not std::filesystem: LibTorch's Python builds export one of their own, with which
  // iterators of a newer compiler crash.
  DIR* const handle = opendir(folder.c_str());
  require(handle != nullptr, "cannot read the folder ", folder, ": ",
          std::strerror(errno));
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(handle))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(handle);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const std::string path = folder + (folder.ends_with('/') ? "" : "/") + name;
    if (is_folder(path))
      add_files(path, files);
    else
      files.push_back(path);
  }
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  add_files(folder, files);
  require(!files.empty(), "the folder ", folder, " has no files");
  return files;
}

// Where a block of text that goes on may be cut.
size_t cut_of(std::string_view block) {
  for (const char separator : {'\n', ' '})
    if (const size_t at = block.rfind(separator); at != block.npos) return at + 1;
  return block.size();
}

void read_plain(ByteSource& source, const Take& take) {
  constexpr size_t kBlock = 1 << 20;
  std::string block;
  bool ends = false;
  while (!ends) {
    const size_t kept = block.size();
    block.resize(kBlock);
    const size_t got = source.read(block.data() + kept, kBlock - kept);
    ends = got < kBlock - kept;
    block.resize(kept + got);
    const size_t size = ends ? block.size() : cut_of(block);
    if (size > 0) take({.text = std::string_view(block).substr(0, size)});
    block.erase(0, size);
  }
}

void read_archive(const std::string& path, const Take& take) {
  for_each_member(path, [&](const std::string& name, ByteSource& contents) {
    require(!is_table(name) && unpacked_name(name) == name, path, ": ", name,
            " is no plain text; unpack the archive and give its folder");
    read_plain(contents, take);
    take({.text = {}, .ends_document = true});
  });
}

void read_extracted(const std::string& path, const Take& take) {
  const std::string contents = read_unpacked(path);
  std::string_view rest = contents;
  int64_t line = 0, opened = 0;
  const char* begin = nullptr;  // of the document's text
  while (!rest.empty()) {
    ++line;
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(text.size() + 1, rest.size()));
    if (text.starts_with(kDocument)) {
      require(opened == 0, path, ", line ", line, ": a <doc> within that of line ",
              opened);
      opened = line;
      begin = rest.data();
    } else if (text.starts_with(kDocumentEnd)) {
      require(opened > 0, path, ", line ", line, ": a </doc> without a <doc>");
      opened = 0;
      take({.text = {begin, static_cast<size_t>(text.data() - begin)},
            .ends_document = true});
    } else {
      require(opened > 0 || text.find_first_not_of(" \t\r") == text.npos, path,
              ", line ", line, ": text outside of <doc> and </doc>");
    }
  }
  require(opened == 0, path, ", line ", opened, ": the <doc> is not closed");
}

}  // namespace

TextFiles::TextFiles(std::string path, std::string column)
    : path_(std::move(path)), column_(std::move(column)) {
  is_folder_ = is_folder(path_);
  in_documents_ = is_folder_ || layout_of(path_) != Layout::plain;
}

void TextFiles::read(const Take& take) const {
  bool is_empty = true;
  const auto take_some = [&](const TextPart& part) {
    is_empty = is_empty && part.text.empty();
    take(part);
  };
  const std::vector<std::string> files =
      is_folder_ ? files_in(path_) : std::vector{path_};
  for (const std::string& file : files) {
    switch (layout_of(file)) {
      case Layout::table:
        for (const auto& row : read_table(file, {.text = column_, .labels = false}))
          take_some({.text = row.text, .ends_document = true});
        break;
      case Layout::extracted: read_extracted(file, take_some); break;
      case Layout::archive: read_archive(file, take_some); break;
      case Layout::plain:
        read_plain(*open_bytes(file), take_some);
        if (is_folder_) take_some({.text = {}, .ends_document = true});
    }
  }
  require(!is_empty, path_, ": there is no text in it");
}

}  // namespace longspan
