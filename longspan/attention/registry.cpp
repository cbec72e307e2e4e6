#include "longspan/attention/mechanism.h"

#include <algorithm>

#include "longspan/base/error.h"
#include "longspan/base/words.h"

namespace longspan {
namespace {

constexpr const Mechanism* kMechanisms[] = {
#define LONGSPAN_MECHANISM(name) &catalogue::name,
#include "longspan/attention/mechanisms.def"
#undef LONGSPAN_MECHANISM
};

// In the order of Mechanism::make.
constexpr std::string_view kSeams[] = {"attention", "mixer", "feed_forward", "stack"};

template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(entry)>>)
      names.emplace_back(entry->name);
    else
      names.emplace_back(entry.name);
  }
  return names;
}

// Puts the name in front of what `work` complains about.
template <class Work>
auto named(std::string_view name, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.starts_with(name)) throw;
    fail(name, ": ", message);
  }
}

}  // namespace

std::string_view Mechanism::seam() const { return kSeams[make.index()]; }

std::span<const Mechanism* const> mechanisms() { return kMechanisms; }

const Mechanism& find_mechanism(std::string_view name) {
  const auto found = std::ranges::find(kMechanisms, name, &Mechanism::name);
  require(found != std::end(kMechanisms), "no mechanism called '", name, "'",
          hint(name, names_of(kMechanisms)));
  return **found;
}

Abilities abilities(const Mechanism& mechanism, const Sizes& sizes,
                    const Value::Map& settings) {
  if (!mechanism.can_with) return mechanism.can;
  const Sizes complete = sizes.completed();
  return mechanism.can_with(
      Settings::complete(mechanism.name, mechanism.settings, settings, complete.layer,
                         complete.layers),
      complete);
}

Value::Map preset(const Mechanism& mechanism, std::string_view name) {
  const auto found = std::ranges::find(mechanism.presets, name, &Preset::name);
  require(found != mechanism.presets.end(), mechanism.name, ": no preset '", name, "'",
          hint(name, names_of(mechanism.presets)));
  return *Value::parse(std::string(found->settings)).as<Value::Map>();
}

template <class Seam>
std::shared_ptr<Seam> make(const Mechanism& mechanism, const Sizes& sizes,
                           const Value::Map& settings,
                           const std::shared_ptr<Shared>& shared) {
  const auto* const maker = std::get_if<Mechanism::Make<Seam>>(&mechanism.make);
  const size_t wanted =
      decltype(mechanism.make)(Mechanism::Make<Seam>(nullptr)).index();
  require(maker != nullptr, mechanism.name, ": fills the seam ", mechanism.seam(),
          ", asked for ", kSeams[wanted]);
  const Sizes complete = sizes.completed();
  require(mechanism.can.grouped || complete.key_heads == complete.heads, mechanism.name,
          ": needs as many heads of keys as of queries, got key_heads ",
          complete.key_heads, " and heads ", complete.heads);
  const auto own = shared ? shared : std::make_shared<Shared>();
  const Settings all = Settings::complete(mechanism.name, mechanism.settings, settings,
                                          complete.layer, complete.layers);
  auto part = named(mechanism.name, [&] { return (*maker)(all, complete, own); });
  part->belongs_to(mechanism, mechanism.can_with ? mechanism.can_with(all, complete)
                                                 : mechanism.can);
  if (!shared && !own->empty()) part->register_module("shared", own);
  return part;
}

template std::shared_ptr<Attention> make(const Mechanism&, const Sizes&,
                                         const Value::Map&,
                                         const std::shared_ptr<Shared>&);
template std::shared_ptr<Mixer> make(const Mechanism&, const Sizes&, const Value::Map&,
                                     const std::shared_ptr<Shared>&);
template std::shared_ptr<FeedForward> make(const Mechanism&, const Sizes&,
                                           const Value::Map&,
                                           const std::shared_ptr<Shared>&);
template std::shared_ptr<Stack> make(const Mechanism&, const Sizes&, const Value::Map&,
                                     const std::shared_ptr<Shared>&);

}  // namespace longspan
