#include "longspan/report/weights_page.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "longspan/base/words.h"
#include "longspan/report/page.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

constexpr int kShades = 10;

// w1 .. w10 are shades of weights above 0, n1 .. n10 of those below.
std::string style() {
  std::ostringstream css;
  css << R"css(
:root { --above: 0,103,176; --below: 196,79,0; }
@media (prefers-color-scheme: dark) { :root { --above: 88,180,240; --below: 255,154,77; } }
.text { font: 14px/1.9 ui-monospace, monospace; overflow-wrap: anywhere; max-width: 72rem; }
.text i { font-style: normal; border-radius: 3px; padding: .1em .12em; }
.heads { display: grid; gap: 1rem; margin: .5rem 0;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.heads figure { margin: 0; padding: .5rem .6rem; border: 1px solid var(--line);
  border-radius: 6px; }
.heads .text { font-size: 9px; line-height: 1.6; max-height: 14rem; overflow-y: auto; }
.heads figcaption { display: flex; justify-content: space-between; gap: .6rem;
  font-size: .8rem; }
.strip { display: block; width: 100%; height: 22px; margin: .25rem 0;
  background: var(--raised); border-radius: 3px; }
.strip path { fill: rgb(var(--above)); }
.whole { max-width: 72rem; }
.whole .strip { height: 44px; }
.key span { white-space: nowrap; margin-right: 1.2rem; }
.key i { display: inline-block; width: 1.4em; height: 1em; vertical-align: -.15em; }
.labels { display: grid; grid-template-columns: max-content minmax(4rem, 20rem) max-content;
  gap: .15rem .7rem; align-items: center; margin: .6rem 0; }
.labels span { text-align: right; }
.labels div { background: var(--raised); border-radius: 3px; }
.labels div div { background: rgb(var(--above)); height: .7rem; min-width: 1px; }
)css";
  for (int shade = 1; shade <= kShades; ++shade)
    for (const auto& [name, colour] :
         {std::pair("w", "above"), std::pair("n", "below")})
      css << '.' << name << shade << "{background:rgba(var(--" << colour << "),"
          << 0.07 * shade << ")}";
  return css.str();
}

double largest(const std::vector<double>& weights) {
  double most = 0;
  for (const double weight : weights) most = std::max(most, std::abs(weight));
  return most;
}

// "w7", or "" where there is next to nothing.
std::string shade_of(double weight, double most) {
  const int shade =
      most > 0 ? static_cast<int>(std::lround(kShades * std::abs(weight) / most)) : 0;
  if (shade == 0) return "";
  return (weight < 0 ? "n" : "w") + std::to_string(shade);
}

std::string share_text(double share) {
  std::ostringstream text;
  text << std::setprecision(3) << 100 * share << " %";
  return text.str();
}

// The words, shaded. Words of one shade go together unless each is to say its share.
std::string shaded(const std::vector<std::string>& words, const WordWeights& by,
                   bool says_shares) {
  const double most = largest(by.weights);
  std::string html = "<div class=\"text\">";
  for (size_t i = 0; i < words.size();) {
    const std::string shade = shade_of(by.weights[i], most);
    size_t to = i + 1;
    while (!says_shares && to < words.size() && shade_of(by.weights[to], most) == shade)
      ++to;
    std::string run;
    for (size_t word = i; word < to; ++word)
      run += (word > i ? " " : "") + escaped(words[word]);
    if (shade.empty() && !says_shares)
      html += run;
    else
      html += "<i" + (shade.empty() ? "" : " class=\"" + shade + "\"") +
              (says_shares ? " title=\"" + share_text(by.weights[i]) + "\"" : "") +
              ">" + run + "</i>";
    html += to < words.size() ? " " : "";
    i = to;
  }
  return html + "</div>\n";
}

// Where in the text the weights are: the sums of as many stretches as there is room
// for.
std::string strip(const std::vector<double>& weights) {
  constexpr size_t kMost = 240;
  const size_t bins = std::min(weights.size(), kMost);
  if (bins == 0) return "";
  std::vector<double> sums(bins);
  for (size_t i = 0; i < weights.size(); ++i)
    sums[i * bins / weights.size()] += std::abs(weights[i]);
  const double most = largest(sums);
  std::ostringstream svg;
  svg << std::setprecision(3) << "<svg class=\"strip\" style=\"max-width:" << 2 * bins
      << "rem\" viewBox=\"0 0 " << bins
      << " 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path d=\"";
  for (size_t i = 0; i < bins && most > 0; ++i)
    if (const double height = sums[i] / most; height > 0.004)
      svg << 'M' << i << " 1v-" << height << "h.9v" << height << 'z';
  svg << "\"/></svg>\n";
  return svg.str();
}

std::string labels(const WeighedText& text) {
  std::string html = "<div class=\"labels\">";
  for (const auto& [label, probability] : text.labels) {
    std::ostringstream width;
    width << std::fixed << std::setprecision(1) << 100 * probability;
    html += "<span>" + escaped(label) +
            "</span><div><div style=\"width:" + width.str() + "%\"></div></div><span>" +
            percent(probability) + "</span>";
  }
  return html + "</div>\n";
}

// "12 % in front, 50 % memory"
std::string elsewhere(const WordWeights& by) {
  constexpr double kLeast = 0.0005;
  std::vector<std::string> parts;
  if (std::abs(by.front) > kLeast) parts.push_back(percent(by.front) + " in front");
  if (by.memory > kLeast) parts.push_back(percent(by.memory) + " memory");
  return joined(parts);
}

std::string head(const std::vector<std::string>& words, const WordWeights& by) {
  return "<figure><figcaption><b>" + escaped(by.title) + "</b><span>" + elsewhere(by) +
         "</span></figcaption>" + strip(by.weights) +
         shaded(words, by, /*says_shares=*/false) + "</figure>\n";
}

bool has_negative(const WeightsReport& report) {
  const auto is_negative = [](const WordWeights& by) {
    return std::ranges::any_of(by.weights, [](double weight) { return weight < 0; });
  };
  return std::ranges::any_of(report.texts, [&](const WeighedText& text) {
    return is_negative(text.whole) ||
           std::ranges::any_of(text.layers, [&](const WeighedText::Layer& layer) {
             return std::ranges::any_of(layer.heads, is_negative);
           });
  });
}

// How to read the pages.
std::string legend(const WeightsReport& report) {
  std::string html = "<p class=\"key\">The share of a word: <span>little ";
  for (int shade = 2; shade <= kShades; shade += 2)
    html += "<i class=\"w" + std::to_string(shade) + "\"></i>";
  html += " the most of all words</span>";
  if (has_negative(report))
    html +=
        "<span>and below 0, where a mechanism subtracts <i class=\"n4\"></i><i "
        "class=\"n8\"></i></span>";
  html += "</p>\n";
  std::string text =
      "Every head is shaded up to its own greatest weight: compare the words of a "
      "head, "
      "not heads. The strip over a text shows where in it the weights are.";
  if (std::ranges::any_of(report.texts, &WeighedText::of_bytes))
    text += " The share of a word is the sum over its bytes, with the space after it.";
  const bool is_deep = std::ranges::any_of(
      report.texts, [](const WeighedText& one) { return one.layers.size() > 1; });
  if (is_deep)
    text +=
        " Through all layers: attention rollout, in which a layer passes half of a "
        "token on and mixes half by the mean of its heads.";
  if (!report.memories.empty())
    text += " What a head reads from its memory is no word's share.";
  return html + "<p class=\"soft\">" + text + "</p>\n";
}

std::string heading(const WeighedText& text, size_t number) {
  const auto best = std::ranges::max_element(
      text.labels, {}, [](const auto& label) { return label.second; });
  return "Text " + std::to_string(number) +
         (text.which.empty() ? "" : ", " + text.which + " of a pair") + ": " +
         best->first + ", " + percent(best->second);
}

std::string memory_table(const std::vector<MemoryUse>& memories) {
  const bool of_heads = std::ranges::all_of(memories, &MemoryUse::of_heads);
  std::string html =
      paragraph(of_heads ? "How much of each head is read from the layer's memory, "
                           "whatever the text: sigmoid(lambda)."
                         : "How much of each group of channels is read from the "
                           "layer's memory, whatever the text: sigmoid(lambda). What "
                           "heads give tokens is scaled by the mean.") +
      "<div class=\"wide\"><table>\n<thead><tr><th></th>";
  size_t most = 0;
  for (const MemoryUse& memory : memories) most = std::max(most, memory.shares.size());
  for (size_t i = 0; i < most; ++i)
    html += "<th class=\"number\" scope=\"col\">" +
            std::string(of_heads ? "head " : "group ") + std::to_string(i) + "</th>";
  html += "</tr></thead>\n";
  for (const MemoryUse& memory : memories) {
    html += "<tr><th scope=\"row\">" + escaped(memory.layer) + "</th>";
    for (const double share : memory.shares)
      html += "<td class=\"number " + shade_of(share, 1) + "\">" + share_text(share) +
              "</td>";
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string weights_page(const WeightsReport& report) {
  Page page{.title = report.title,
            .lead = html_of(report.facts) + legend(report),
            .style = style()};
  for (size_t i = 0; i < report.texts.size(); ++i) {
    const WeighedText& text = report.texts[i];
    std::string html = labels(text);
    if (!text.note.empty())
      html += "<p class=\"soft\">" + escaped(text.note) + "</p>\n";
    html += "<h3>" + escaped(text.whole.title) + "</h3>\n<div class=\"whole\">" +
            strip(text.whole.weights) +
            shaded(text.words, text.whole, /*says_shares=*/true) + "</div>\n";
    if (const std::string rest = elsewhere(text.whole); !rest.empty())
      html += "<p class=\"soft\">Not on words: " + rest + ".</p>\n";
    for (const auto& [title, heads] : text.layers) {
      html += "<h3>" + escaped(title) + "</h3>\n<div class=\"heads\">\n";
      for (const WordWeights& one : heads) html += head(text.words, one);
      html += "</div>\n";
    }
    page.sections.push_back({heading(text, i + 1), html});
  }
  if (!report.memories.empty())
    page.sections.push_back({"Memory", memory_table(report.memories)});
  return html(page);
}

WordSplit split_words(const std::vector<std::string>& pieces, bool are_bytes) {
  WordSplit split;
  bool is_open = false;
  for (const std::string& piece : pieces) {
    const bool is_space =
        are_bytes && piece.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
    if (is_space) {
      is_open = false;
    } else if (is_open) {
      split.words.back() += piece;
    } else {
      split.words.push_back(piece);
      is_open = are_bytes;
    }
    split.word_of.push_back(is_space ? -1
                                     : static_cast<int64_t>(split.words.size()) - 1);
  }
  return split;
}

std::vector<double> by_words(const WordSplit& split,
                             const std::vector<double>& weights) {
  std::vector<double> sums(split.words.size());
  int64_t last = 0;
  for (size_t i = 0; i < split.word_of.size() && !sums.empty(); ++i) {
    if (split.word_of[i] >= 0) last = split.word_of[i];
    sums[static_cast<size_t>(last)] += weights.at(i);
  }
  return sums;
}

}  // namespace longspan::report
