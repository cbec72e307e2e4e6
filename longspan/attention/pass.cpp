#include "longspan/attention/pass.h"

#include "longspan/base/error.h"

namespace longspan {
namespace {

// Stands beside the tensors of a saved record.
constexpr char kCount[] = "#tokens";

Record* part_of(Record* record, std::string_view name) {
  return record ? &record->part(name) : nullptr;
}

}  // namespace

torch::Tensor Record::get(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? torch::Tensor() : found->second;
}

void Record::set(std::string_view name, torch::Tensor value) {
  tensors_.insert_or_assign(std::string(name), std::move(value));
}

torch::Tensor Record::grow(std::string_view name, const torch::Tensor& more,
                           int64_t axis) {
  const torch::Tensor before = get(name);
  const torch::Tensor all = before.defined() ? torch::cat({before, more}, axis) : more;
  set(name, all);
  return all;
}

Record& Record::part(std::string_view name) {
  return parts_.try_emplace(std::string(name)).first->second;
}

std::map<std::string, torch::Tensor> Record::all() const {
  std::map<std::string, torch::Tensor> tensors(tensors_.begin(), tensors_.end());
  for (const auto& [name, part] : parts_)
    for (const auto& [inner, tensor] : part.all())
      tensors.emplace(name + "." + inner, tensor);
  return tensors;
}

int64_t Record::numel() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : all()) total += tensor.numel();
  return total;
}

std::map<std::string, torch::Tensor> Record::saved() const {
  std::map<std::string, torch::Tensor> tensors(tensors_.begin(), tensors_.end());
  tensors.emplace(kCount, torch::full({1}, tokens, torch::kLong));
  for (const auto& [name, part] : parts_)
    for (const auto& [inner, tensor] : part.saved())
      tensors.emplace(name + "." + inner, tensor);
  return tensors;
}

Record Record::restored(const std::map<std::string, torch::Tensor>& saved) {
  Record record;
  for (const auto& [name, tensor] : saved) {
    Record* owner = &record;
    std::string_view rest = name;
    for (size_t dot; (dot = rest.find('.')) != rest.npos; rest.remove_prefix(dot + 1))
      owner = &owner->part(rest.substr(0, dot));
    if (rest == kCount)
      owner->tokens = tensor.item<int64_t>();
    else
      owner->set(rest, tensor);
  }
  return record;
}

void Record::select(const torch::Tensor& examples) {
  for (auto& [name, tensor] : tensors_)
    tensor = tensor.index_select(0, examples.to(tensor.device(), torch::kLong));
  for (auto& [name, part] : parts_) part.select(examples);
}

Stream Pass::keys(int64_t queries, int64_t keys) const {
  if (crosses()) return {.tokens = context.tokens, .positions = context.positions};
  if (queries == keys) return {.tokens = mask.tokens, .positions = positions};
  const int64_t before = keys - queries;
  require(!positions.defined() && !mask.segment.defined(), "positions and segments of ",
          queries, " queries say nothing about ", keys,
          " keys; give a context with positions");
  if (!mask.tokens.defined()) return {};
  require(before > 0, "mask.tokens of ", queries, " queries says nothing about ", keys,
          " keys of another sequence; give context.tokens");
  const auto real = torch::ones({mask.tokens.size(0), before}, mask.tokens.options());
  return {.tokens = torch::cat({real, mask.tokens}, 1)};
}

void Pass::add_loss(const std::string& name, const torch::Tensor& loss) {
  const auto [found, is_new] = losses.try_emplace(name, loss);
  if (!is_new) found->second = found->second + loss;
}

Inside::Inside(Pass& pass, std::string_view part)
    : pass_(pass), carry_(pass.carry), state_(pass.state), choices_(pass.choices) {
  pass.carry = part_of(carry_, part);
  pass.state = part_of(state_, part);
  pass.choices = part_of(choices_, part);
}

Inside::~Inside() {
  pass_.carry = carry_;
  pass_.state = state_;
  pass_.choices = choices_;
}

}  // namespace longspan
