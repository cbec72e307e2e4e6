#include "longspan/report/markdown.h"

#include <cctype>
#include <regex>

namespace longspan::report {

std::string markdown(std::string_view text) {
  std::string safe;
  bool is_code = false;
  for (const char letter : text) {
    if (letter == '`') is_code = !is_code;
    if (letter == '|' || (!is_code && (letter == '*' || letter == '<'))) safe += '\\';
    safe += letter;
  }
  return safe;
}

std::string code(std::string_view text) {
  std::string inside(text);
  for (size_t at = 0; (at = inside.find('|', at)) != std::string::npos; at += 2)
    inside.insert(at, "\\");
  return "`" + inside + "`";
}

std::string sentence(std::string_view text) {
  std::string full = markdown(text);
  if (!full.empty())
    full[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(full[0])));
  return full.ends_with('.') ? full : full + ".";
}

std::string with_links(std::string_view text) {
  static const std::regex number(R"(arXiv:(\d{4}\.\d{4,5}))");
  return std::regex_replace(markdown(text), number,
                            "[arXiv:$1](https://arxiv.org/abs/$1)");
}

}  // namespace longspan::report
