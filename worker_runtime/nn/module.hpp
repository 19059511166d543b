// Unit and Model: a model is an ordered list of units; the step program runs, shards and communicates unit by unit.
// Constructing a model allocates no tensor, so that a plan for any size can be made anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker_runtime/autograd/tape.hpp"
#include "worker_runtime/nn/parameter.hpp"

namespace dtrun::runtime {

// One micro-batch: i32 [batch, sequence] each. targets[b][t] is the token that should follow tokens[b][..t];
// ops::kIgnoreIndex is ignored by the loss.
struct Batch {
  Tensor tokens;
  Tensor targets;  // may be undefined when only activations or logits are wanted
};

class Unit;

// Where a module registers its parameters: a unit and a name prefix. Passed by value down the constructors of modules.
class Scope {
 public:
  explicit Scope(Unit& unit, std::string prefix = {}) : unit_(&unit), prefix_(std::move(prefix)) {}
  Scope operator/(std::string_view name) const;
  Parameter& parameter(std::string_view name, const Shape& shape, Init init) const;
  // Uses a parameter that another unit owns (tied weights).
  Parameter& share(Parameter& parameter) const;

 private:
  std::string full_name(std::string_view name) const;
  Unit* unit_;
  std::string prefix_;
};

// A part of the model between two hand-overs of one activation. Owned by its model; derived classes hold modules and
// write forward.
class Unit {
 public:
  explicit Unit(std::string name) : name_(std::move(name)) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  virtual ~Unit() = default;

  const std::string& name() const noexcept { return name_; }
  // In order of registration; tied parameters appear in every unit that uses them.
  std::span<Parameter* const> parameters() const noexcept { return uses_; }
  bool owns(const Parameter& parameter) const noexcept;

  // `activation` is undefined for the first unit. The last unit returns the mean loss of the micro-batch, f32 [1].
  virtual Value forward(Tape& tape, const Value& activation, const Batch& batch) const = 0;
  // Shape of what forward returns, for buffers of the step program.
  virtual Shape output_shape(std::int64_t batch, std::int64_t sequence) const = 0;

  // What the step program calls: forward between tape.input and tape.finish. With sequence parallelism the activation
  // is this rank's part of the sequence. Throws UsageError when the result does not lie as the next unit takes it.
  Tensor run(Tape& tape, const Tensor& activation, const Batch& batch) const;

 private:
  friend class Scope;
  std::string name_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> uses_;
};

// Owned by the run. Units in order of execution; the last returns the loss.
class Model {
 public:
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;

  template <class UnitType, class... Args>
  UnitType& add(Args&&... args) {
    auto unit = std::make_unique<UnitType>(std::forward<Args>(args)...);
    UnitType& reference = *unit;
    append(std::move(unit));
    return reference;
  }

  std::size_t size() const noexcept { return units_.size(); }
  Unit& unit(std::size_t index) const { return *units_.at(index); }
  // Every parameter once, in order of first use. Sort by name for hashes and files.
  const std::vector<Parameter*>& parameters() const noexcept { return parameters_; }
  // nullptr when unknown.
  Parameter* find(std::string_view name) const noexcept;
  std::int64_t parameter_count() const noexcept;

  // How tensor parallelism cuts its layers (nn/parallelize.hpp).
  std::vector<TensorPlanEntry> tensor_plan;

 private:
  void append(std::unique_ptr<Unit> unit);
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Parameter*> parameters_;                        // of the units
  std::unordered_map<std::string_view, Parameter*> by_name_;  // the names are the parameters' own
};

}  // namespace dtrun::runtime
