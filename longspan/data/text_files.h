// Running text from files: one long text, or documents.

#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace longspan {

// The next part of a text, cut behind the end of a line or a space as far as there are
// any.
struct TextPart {
  std::string_view text;
  bool ends_document = false;
};

// What `path` is:
//   a folder: documents, the files in it and in its folders, in the order of their
//     names; what begins with a dot is left out;
//   .jsonl, .json (an object a line), .tsv, .csv: documents, the column or key
//   `column`; <doc ..> lines and </doc> lines: what is between is a document
//   (WikiExtractor); an archive (tar): documents, the files in it, which are plain
//   text; any other file: one long text; in a folder a document.
// Files may be packed, as .gz or .xz.
class TextFiles {
 public:
  explicit TextFiles(std::string path, std::string column = "text");

  const std::string& path() const { return path_; }
  // Whether it is documents.
  bool in_documents() const { return in_documents_; }

  // Calls `take` with all parts in order. A file that is not as it should be is an
  // Error that names it.
  void read(const std::function<void(const TextPart&)>& take) const;

 private:
  std::string path_, column_;
  bool is_folder_ = false, in_documents_ = false;
};

}  // namespace longspan
