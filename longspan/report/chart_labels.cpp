#include "longspan/report/chart_labels.h"

#include <algorithm>
#include <limits>

namespace longspan::report {
namespace {

constexpr double kLetter = 7.2, kUp = 10, kDown = 4;  // around the foot of a letter

double overlap(const Box& a, const Box& b) {
  const double width = std::min(a.right, b.right) - std::max(a.left, b.left),
               height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  return std::max(width, 0.0) * std::max(height, 0.0);
}

// With some room around it: what is nearer seems to be its label.
Box box_of(const Bubble& bubble) {
  const double reach = bubble.radius + 6;
  return {bubble.x - reach, bubble.y - reach, bubble.x + reach, bubble.y + reach};
}

Box box_of(const PlacedLabel& label) {
  const auto letters = static_cast<double>(std::ranges::count_if(
      label.text, [](char byte) { return (byte & 0xc0) != 0x80; }));
  const double width = kLetter * letters;
  const double left = label.anchor == "start"    ? label.x
                      : label.anchor == "middle" ? label.x - width / 2
                                                 : label.x - width;
  return {left, label.y - kUp, left + width, label.y + kDown};
}

// The nearest first.
std::vector<PlacedLabel> places(const Bubble& bubble) {
  const double gap = bubble.radius + 4, line = 15;
  std::vector<PlacedLabel> all;
  const auto add = [&](double x, double y, const char* anchor, bool is_far) {
    all.push_back({.x = bubble.x + x,
                   .y = bubble.y + y,
                   .anchor = anchor,
                   .text = bubble.label,
                   .is_far = is_far,
                   .from_x = bubble.x,
                   .from_y = bubble.y});
  };
  add(0, -gap, "middle", false);
  add(0, gap + kUp, "middle", false);
  add(gap, kDown, "start", false);
  add(-gap, kDown, "end", false);
  for (const double side : {0.8 * gap, -0.8 * gap})
    for (const double up : {-0.8 * gap, 0.8 * gap + kUp})
      add(side, up, side > 0 ? "start" : "end", false);
  for (const double lines : {1.0, 2.0, 3.0, 4.0})
    for (const double up : {-gap - lines * line, gap + kUp + lines * line}) {
      add(0, up, "middle", true);
      add(gap, up, "start", true);
      add(-gap, up, "end", true);
    }
  return all;
}

struct Choice {
  const PlacedLabel* label = nullptr;  // none: there is no room
  double cost = std::numeric_limits<double>::infinity();
};

Choice best_place(const std::vector<PlacedLabel>& choices, size_t own,
                  const std::vector<Bubble>& bubbles, const Box& frame,
                  const std::vector<PlacedLabel>& placed) {
  constexpr double kAway = 3;  // of each place that is farther
  Choice best;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Box box = box_of(choices[i]);
    const bool is_inside = box.left >= frame.left && box.right <= frame.right &&
                           box.top >= frame.top && box.bottom <= frame.bottom;
    const bool is_free = std::ranges::none_of(placed, [&](const PlacedLabel& other) {
      return overlap(box, box_of(other)) > 0;
    });
    if (!is_inside || !is_free) continue;
    double cost = kAway * static_cast<double>(i);
    for (size_t other = 0; other < bubbles.size(); ++other)
      if (other != own) cost += overlap(box, box_of(bubbles[other]));
    if (cost < best.cost) best = {&choices[i], cost};
  }
  return best;
}

}  // namespace

std::vector<PlacedLabel> placed_labels(const std::vector<Bubble>& bubbles,
                                       const Box& frame) {
  std::vector<std::vector<PlacedLabel>> choices;
  std::vector<size_t> left;
  for (size_t i = 0; i < bubbles.size(); ++i) {
    choices.push_back(places(bubbles[i]));
    if (!bubbles[i].label.empty()) left.push_back(i);
  }
  std::vector<PlacedLabel> placed;
  while (!left.empty()) {  // the one with the least room first
    size_t next = 0;
    Choice most;
    for (size_t at = 0; at < left.size(); ++at) {
      const Choice choice =
          best_place(choices[left[at]], left[at], bubbles, frame, placed);
      if (at > 0 && !(choice.cost > most.cost)) continue;
      next = at;
      most = choice;
    }
    if (most.label) placed.push_back(*most.label);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(next));
  }
  return placed;
}

}  // namespace longspan::report
