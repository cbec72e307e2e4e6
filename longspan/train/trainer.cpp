#include "longspan/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <map>
#include <numeric>
#include <span>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/memory.h"
#include "longspan/base/shapes.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/data/order.h"
#include "longspan/data/prefetch.h"
#include "longspan/train/average.h"
#include "longspan/train/carries.h"
#include "longspan/train/checkpoint.h"
#include "longspan/train/journal.h"
#include "longspan/train/run_folder.h"
#include "longspan/train/schedule.h"
#include "longspan/train/stop.h"

namespace longspan {
namespace {

using torch::Tensor;

// 0 if the budget does not say.
int64_t total_steps(const Objective& objective, const TrainOptions& options) {
  int64_t steps = options.steps;
  if (options.epochs > 0 && options.ramp_steps == 0) {
    const auto count = static_cast<double>(objective.examples("train").size());
    const auto through = static_cast<int64_t>(
        std::ceil(options.epochs * count / static_cast<double>(options.batch)));
    steps = steps > 0 ? std::min(steps, through) : through;
  }
  return steps;
}

int64_t longest_of(const Dataset& examples, std::span<const int64_t> numbers) {
  int64_t longest = 1;
  for (const int64_t number : numbers)
    longest = std::max(longest, number < 0 ? 0 : examples.length(number));
  return longest;
}

// Padded to a multiple of `pad_to` tokens, but not beyond `most`, the longest of all.
Batch padded_batch(const Dataset& examples, std::span<const int64_t> numbers,
                   const BatchOptions& options, int64_t pad_to, int64_t most) {
  const int64_t longest = longest_of(examples, numbers);
  const int64_t padded = (longest + pad_to - 1) / pad_to * pad_to;
  BatchOptions to = options;
  to.tokens = std::min(padded, most);
  return examples.batch(numbers, to);
}

std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

class Training {
 public:
  Training(Objective& objective, const TrainOptions& options, const RunOptions& run)
      : objective_(objective),
        options_(options),
        run_(run),
        device_(device_of(options)),
        optimizer_(argument(
            [&] { return AdamW(named_parameters(objective.model()), options.adamw); })),
        folder_(run.folder),
        checkpoints_(run.folder + "/checkpoints"),
        schedule_(options.learning_rate, options.schedule,
                  total_steps(objective, options)),
        average_(options.average == "ema"    ? Averaging::ema
                 : options.average == "last" ? Averaging::last
                                             : Averaging::none,
                 options.average_decay, options.average_last),
        carries_(objective.carry()),
        peak_(device_) {
    state_.data = objective.examples("train").fingerprint();
    resume();
    if (run.begin) run.begin();
    journal_.emplace(
        run.folder, state_.step,
        JournalOptions{.tensorboard = options.tensorboard, .quiet = run.quiet});
    for (const std::string& remark : remarks_) journal_->say(remark);
    link_best();
    checkpoints_.prune(state_.step, options_.keep, best_steps());
  }

  TrainResult run() {
    const StopSignals signals;
    started_ = std::chrono::steady_clock::now();
    seconds_before_ = state_.seconds;
    last_log_ = {.seconds = seconds(), .tokens = state_.tokens};
    const std::vector<int64_t> all = lengths();
    longest_ = *std::ranges::max_element(all);
    const bool in_streams = is_of_examples(objective_.carry());
    Order order(all, {.seed = static_cast<uint64_t>(options_.seed),
                      .batch = options_.batch,
                      .bucket = options_.bucket,
                      .streams = in_streams ? options_.batch : 0});
    Prefetch<Work> batches(
        [&, step = state_.step, at = state_.examples]() mutable {
          const int64_t count = batch_at(step);
          Work work{.batches = micro_batches(order.numbers(at, count), step),
                    .begins = order.begins(at)};
          ++step;
          at += count;
          return work;
        },
        options_.prefetch);
    const int64_t save_every =
        options_.save_every > 0 ? options_.save_every : options_.evaluate_every;
    if (saved_ != state_.step && state_.step > 0)
      save();  // a checkpoint from elsewhere
    std::string end;
    while (true) {
      end = reason_to_end();
      if (!end.empty() && window_.steps > 0) tell_progress();
      bool changed = saved_ != state_.step;
      if (is_evaluation_due(!end.empty())) {
        if (!evaluate()) {  // a signal came
          end.clear();
          break;
        }
        changed = true;
        if (end.empty()) end = reason_to_end();  // out of patience
      }
      const bool best = state_.best && state_.best->step == state_.step;
      if (changed &&
          (!end.empty() || best || (state_.step > 0 && state_.step % save_every == 0)))
        save();
      if (!end.empty() || !step(batches.next())) break;
      if (state_.step % options_.log_every == 0) tell_progress();
    }
    if (end.empty() && saved_ != state_.step) save();
    return finished(end);
  }

 private:
  struct Work {  // of a step
    std::vector<Batch> batches;
    bool begins = false;  // streams of examples do
  };

  std::vector<int64_t> lengths() const {
    const Dataset& examples = objective_.examples("train");
    std::vector<int64_t> all(static_cast<size_t>(examples.size()));
    for (int64_t i = 0; i < examples.size(); ++i)
      all[static_cast<size_t>(i)] = examples.length(i);
    return all;
  }

  // Examples of one step.
  int64_t batch_at(int64_t step) const {
    if (options_.ramp_steps == 0 || step >= options_.ramp_steps) return options_.batch;
    const int64_t first = std::max<int64_t>(1, options_.first_batch);
    return first + (options_.batch - first) * step / options_.ramp_steps;
  }

  // Of each pass of a step.
  std::vector<int64_t> examples_of_passes() const {
    const int64_t each =
        options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
    std::vector<int64_t> counts;
    for (int64_t left = options_.batch; left > 0; left -= each)
      counts.push_back(std::min(each, left));
    return counts;
  }

  std::vector<Batch> micro_batches(const std::vector<int64_t>& numbers,
                                   int64_t step) const {
    const auto each = static_cast<size_t>(
        options_.micro_batch > 0 ? options_.micro_batch : options_.batch);
    const Dataset& examples = objective_.examples("train");
    // The same for all micro-batches, so that it does not matter how many there are.
    const Key key =
        mix(Key{static_cast<uint64_t>(options_.seed)}, static_cast<uint64_t>(step));
    std::vector<Batch> made;
    const std::span all(numbers);
    for (size_t first = 0; first < all.size(); first += each) {
      const auto some = all.subspan(first, std::min(each, all.size() - first));
      made.push_back(padded_batch(examples, some, {.meant_for = device_, .key = key},
                                  options_.pad_to, longest_));
    }
    return made;
  }

  double seconds() const {
    const std::chrono::duration<double> since =
        std::chrono::steady_clock::now() - started_;
    return seconds_before_ + since.count();
  }

  // Of training alone.
  double training_seconds() const { return seconds() - state_.aside; }

  // What is done while one lives is no training.
  class Aside {
   public:
    explicit Aside(Training& training)
        : training_(training), began_(training.seconds()) {}
    ~Aside() {
      const double spent = training_.seconds() - began_;
      training_.state_.aside += spent;
      training_.last_log_.seconds += spent;
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    Training& training_;
    double began_;
  };

  void note_peak() { state_.peak_bytes = std::max(state_.peak_bytes, peak_.total()); }

  // The share of the budget that is used up.
  double used() const {
    const auto share = [](double done, double all) { return all > 0 ? done / all : 0; };
    const auto count = static_cast<double>(objective_.examples("train").size());
    const auto as_double = [](int64_t number) { return static_cast<double>(number); };
    return std::max({share(as_double(state_.step), as_double(options_.steps)),
                     share(as_double(state_.examples) / count, options_.epochs),
                     share(as_double(state_.tokens), as_double(options_.tokens)),
                     share(seconds() / 60, options_.minutes)});
  }

  std::string reason_to_end() const {
    if (used() >= 1) return "the budget is used up";
    if (options_.patience > 0 && state_.without_gain >= options_.patience)
      return "no gain in " + std::to_string(state_.without_gain) + " evaluations";
    return {};
  }

  // Whether mechanisms that draw the keys they meet do so in the next step.
  bool samples() const {
    if (options_.full_share == 0) return true;
    const auto all = static_cast<double>(total_steps(objective_, options_));
    return static_cast<double>(state_.step) < all * (1 - options_.full_share);
  }

  // One update of the weights; false, with nothing changed, if a signal came.
  bool step(const Work& work) {
    const std::vector<Batch>& micro = work.batches;
    torch::nn::Module& model = objective_.model();
    model.train();
    optimizer_.clear_gradients();
    buffers_.clear();
    for (const Tensor& buffer : model.buffers()) buffers_.push_back(buffer.clone());
    int64_t examples = 0, tokens = 0, answers = 0;
    for (const Batch& batch : micro) {
      examples += batch.examples();
      answers += batch.answers;
    }
    std::vector<Record> carries = carries_.given(micro.size(), work.begins);
    std::vector<double> shares;
    Tensor loss_sum, right_sum;
    int64_t flops = 0;
    for (size_t i = 0; i < micro.size(); ++i) {
      if (StopSignals::noted()) {
        restore_buffers();
        return false;
      }
      const Batch batch = micro[i].to(device_);
      tokens += batch.real_tokens;
      Pass pass;
      pass.training = true;
      pass.sampling = samples();
      if (objective_.carry() != Carry::none) pass.carry = &carries[i];
      const Key key = mix(Key{static_cast<uint64_t>(options_.seed)}, i);
      pass.draw = Draw(key.bits, static_cast<uint64_t>(state_.step));
      const int64_t before = flops_counted();
      const BatchSums sums = objective_.evaluate(batch, pass);
      flops += flops_counted() - before;
      Tensor loss = sums.loss / static_cast<double>(std::max<int64_t>(1, answers));
      const double share =
          static_cast<double>(batch.examples()) / static_cast<double>(examples);
      shares.push_back(share);
      for (const auto& [name, extra] : pass.losses) loss = loss + extra * share;
      loss.backward();
      optimizer_.collect_gradients();
      loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
      right_sum = right_sum.defined() ? right_sum + sums.right : sums.right;
    }
    const Tensor square = optimizer_.gradient_square();
    require(square.defined(), "no parameter of the model has a gradient");
    // The one place where a step waits for the device.
    const Tensor read = torch::stack({loss_sum.to(torch::kDouble),
                                      right_sum.to(torch::kDouble), square})
                            .cpu();
    const double loss = read[0].item<double>(), right = read[1].item<double>();
    const double norm = std::sqrt(read[2].item<double>());
    check_health(loss, norm);
    if (state_.step == 0) state_.first_loss = loss;

    const double rate = schedule_.at(state_.step);
    const double scale =
        options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1;
    optimizer_.step(rate, scale);
    average_.after_step(optimizer_.weights());
    carries_.take(carries, shares);
    ++state_.step;
    state_.examples += examples;
    state_.tokens += tokens;
    // A backward pass is twice a forward pass.
    state_.flops += 3 * static_cast<double>(flops);
    window_.loss += loss;
    window_.right += right;
    window_.answers += answers;
    ++window_.steps;
    window_.norm = norm;
    window_.rate = rate;
    return true;
  }

  // Those that training changes (centroids, banks) as they were before a step that is
  // given up.
  void restore_buffers() {
    const torch::NoGradGuard restoring;
    std::vector<Tensor> now = objective_.model().buffers();
    for (size_t i = 0; i < now.size(); ++i) now[i].copy_(buffers_[i]);
  }

  void check_health(double loss, double norm) {
    const std::string number = std::to_string(state_.step + 1);
    std::string trouble;
    const auto in_words = [](double value) -> std::string {
      if (std::isnan(value)) return "not a number";
      std::ostringstream text;
      text << value;
      return text.str();
    };
    if (!std::isfinite(loss))
      trouble = "the loss of step " + number + " is " + in_words(loss);
    else if (!std::isfinite(norm))
      trouble = "the gradient of step " + number + " is " + in_words(norm);
    else if (options_.divergence > 0 && state_.step > 0 &&
             loss > options_.divergence * std::max(1.0, state_.first_loss))
      trouble = "the loss of step " + number + ", " + in_words(loss) +
                ", has diverged from " + in_words(state_.first_loss) + " at the first";
    if (trouble.empty()) return;
    restore_buffers();
    if (saved_ != state_.step) save();
    trouble += "; the state before it is saved as " + checkpoints_.path(state_.step) +
               "; a lower train.learning_rate or a train.clip may help";
    journal_->log(trouble);
    fail(trouble);
  }

  void tell_progress() {
    const double now = seconds();
    const double spent = std::max(1e-9, now - last_log_.seconds);
    const double rate = static_cast<double>(state_.tokens - last_log_.tokens) / spent;
    const auto steps = static_cast<double>(window_.steps);
    const double loss = window_.loss / steps;
    const double accuracy =
        window_.right / static_cast<double>(std::max<int64_t>(1, window_.answers));
    note_peak();
    journal_->metrics(
        "train", state_.step,
        {{"loss", loss},
         {"accuracy", accuracy},
         {"learning_rate", window_.rate},
         {"gradient_norm", window_.norm},
         {"tokens_per_second", rate},
         {"peak_bytes", static_cast<double>(state_.peak_bytes)},
         {"flops", state_.flops},
         {"examples", static_cast<double>(state_.examples)},
         {"tokens", static_cast<double>(state_.tokens)},
         {"epoch", static_cast<double>(state_.examples) /
                       static_cast<double>(objective_.examples("train").size())},
         {"seconds", now},
         {"training_seconds", training_seconds()}});
    std::ostringstream line;
    line << "step " << state_.step;
    if (options_.steps > 0) line << '/' << options_.steps;
    line << "  loss " << std::fixed << std::setprecision(4) << loss << "  accuracy "
         << percent(accuracy) << "  rate " << std::scientific << std::setprecision(2)
         << window_.rate << "  " << short_number(rate) << " tokens/s  "
         << short_number(static_cast<double>(state_.peak_bytes)) << "B";
    if (const double share = used(); share > 0 && share < 1)
      line << "  " << duration(now * (1 - share) / share) << " left";
    journal_->progress(line.str());
    window_ = {};
    last_log_ = {.seconds = now, .tokens = state_.tokens};
  }

  bool is_evaluation_due(bool at_end) const {
    if (state_.step == 0) return false;
    if (at_end && !state_.best) return true;
    const bool due = at_end || state_.step % options_.evaluate_every == 0;
    return due && state_.evaluated != state_.step;
  }

  // False, with nothing changed, if a signal came.
  bool evaluate() {
    const double trained = training_seconds();
    const Aside aside(*this);
    const WeightAverage average_before = average_;
    if (state_.evaluated != state_.step) average_.note(optimizer_.weights());
    std::optional<Score> valid;
    {
      const Averaged averaged(*this);
      valid = score_of("valid", carries_.of_model());
    }
    if (!valid) {
      average_ = average_before;
      return false;
    }
    state_.evaluated = state_.step;
    const bool by_loss = options_.best_by == "goal" ? objective_.judges_by_loss()
                                                    : options_.best_by == "loss";
    const bool better =
        !state_.best || (by_loss ? valid->loss < state_.best->score.loss
                                 : valid->accuracy > state_.best->score.accuracy);
    if (better) state_.best = Scored{.step = state_.step, .score = *valid};
    state_.without_gain = better ? 0 : state_.without_gain + 1;
    Measures measures = measures_of("valid", *valid);
    std::ostringstream line;
    line << "step " << state_.step << "  validation loss " << std::fixed
         << std::setprecision(4) << valid->loss << "  accuracy "
         << percent(valid->accuracy);
    for (const auto& [name, value] :
         objective_.measures(objective_.examples("valid"), *valid))
      line << "  " << spaced(name) << ' ' << value;
    line << (better ? "  best so far" : "");
    measures.emplace_back("seconds", seconds());
    measures.emplace_back("training_seconds", trained);
    journal_->metrics("valid", state_.step, measures);
    journal_->say(line.str());
    return true;
  }

  // What metrics.jsonl says of a score.
  Measures measures_of(const char* split, const Score& score) const {
    Measures measures = {{"loss", score.loss},
                         {"accuracy", score.accuracy},
                         {"answers", static_cast<double>(score.answers)}};
    for (const auto& more : objective_.measures(objective_.examples(split), score))
      measures.push_back(more);
    return measures;
  }

  // Nothing if a signal came.
  std::optional<Score> score_of(const char* split, const Record* carry) {
    return score(objective_, objective_.examples(split),
                 {.batch = evaluation_batch(),
                  .device = device_,
                  .stop = [] { return StopSignals::noted() != 0; },
                  .pad_to = options_.pad_to,
                  .carry = carry});
  }

  int64_t evaluation_batch() const {
    if (options_.evaluate_batch > 0) return options_.evaluate_batch;
    return options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
  }

  // The model has its averaged weights while one lives.
  class Averaged {
   public:
    explicit Averaged(Training& training) : optimizer_(training.optimizer_) {
      const auto averages = training.average_.weights();
      if (averages.empty()) return;
      for (const auto& [name, weight] : optimizer_.weights())
        before_.push_back(weight.detach().clone());
      set(averages);
    }
    ~Averaged() {
      if (!before_.empty()) set(before_);
    }
    Averaged(const Averaged&) = delete;
    Averaged& operator=(const Averaged&) = delete;

   private:
    void set(const std::vector<Tensor>& values) {
      const torch::NoGradGuard without_gradients;
      for (size_t i = 0; i < values.size(); ++i)
        optimizer_.weights()[i].second.detach().copy_(values[i]);
      optimizer_.round_weights();
    }

    AdamW& optimizer_;
    std::vector<Tensor> before_;
  };

  NamedTensors model_tensors() {
    NamedTensors tensors;
    for (const auto& [name, weight] : optimizer_.weights())
      tensors[name] = weight.detach().clone();
    for (const auto& entry : objective_.model().named_buffers())
      tensors[entry.key()] = entry.value().detach().clone();
    return tensors;
  }

  void save() {
    const Aside aside(*this);
    note_peak();
    state_.seconds = seconds();
    Checkpoint checkpoint;
    checkpoint.optimizer = optimizer_.saved();
    checkpoint.optimizer.merge(average_.saved(optimizer_.weights()));
    if (options_.average != "none")
      for (const auto& [name, weight] : optimizer_.weights())
        checkpoint.optimizer["weights." + name] = weight.detach();
    {
      const Averaged averaged(*this);
      checkpoint.model = model_tensors();
    }
    checkpoint.model.merge(carries_.saved_with_model());
    checkpoint.optimizer.merge(carries_.saved_with_optimizer());
    checkpoint.state = text_of(state_);
    checkpoints_.write(state_.step, checkpoint);
    saved_ = state_.step;
    link_best();
    checkpoints_.prune(state_.step, options_.keep, best_steps());
    journal_->flush();
  }

  std::vector<int64_t> best_steps() const {
    return state_.best ? std::vector<int64_t>{state_.best->step}
                       : std::vector<int64_t>{};
  }

  // run/best -> checkpoints/step-N
  void link_best() {
    if (!state_.best) return;
    const std::string link = run_.folder + "/best", made = link + ".unfinished";
    unlink(made.c_str());
    const std::string target = "checkpoints/step-" + std::to_string(state_.best->step);
    if (symlink(target.c_str(), made.c_str()) == 0 &&
        std::rename(made.c_str(), link.c_str()) == 0)
      return sync_folder(run_.folder);
    const int error = errno;
    unlink(made.c_str());
    fail("cannot write ", link, ": ", std::strerror(error));
  }

  void resume() {
    if (run_.resume.empty()) return;
    if (run_.resume != "auto") {
      take(run_.resume, read_checkpoint(run_.resume));
      return;
    }
    auto steps = checkpoints_.steps();
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      const std::string path = checkpoints_.path(*step);
      std::optional<Checkpoint> found;
      try {
        found = read_checkpoint(path);
      } catch (const Error& error) {
        remarks_.push_back(std::string("skipped a checkpoint: ") + error.what());
        continue;
      }
      take(path, *found);
      return;
    }
    remarks_.emplace_back("no checkpoint to go on from; training begins");
  }

  void take(const std::string& path, const Checkpoint& checkpoint) {
    const auto saved = state_from(checkpoint.state);
    require(saved.has_value(), path, "/state.json is not the state of a training");
    require(saved->data == state_.data, path,
            ": was trained on other examples than these; give the same data");
    state_ = *saved;
    NamedTensors weights = checkpoint.model;
    for (const auto& [name, tensor] : checkpoint.optimizer)
      if (name.starts_with("weights.")) weights[name.substr(8)] = tensor;
    load_weights(objective_.model(), weights, path);
    carries_.load(checkpoint.model, checkpoint.optimizer, device_);
    for (const auto& [name, weight] : optimizer_.weights())
      weight.detach().copy_(weights.at(name));
    optimizer_.round_weights();
    optimizer_.load(checkpoint.optimizer, state_.step);
    average_.load(checkpoint.optimizer, optimizer_.weights());
    remarks_.push_back("goes on from " + path);
    const auto seek_anew = [&] {
      state_.best.reset();
      state_.without_gain = 0;
    };
    std::error_code error;
    const std::string own = checkpoints_.path(state_.step);
    if (!std::filesystem::equivalent(path, own, error)) {
      if (!carries_.fits(examples_of_passes())) {
        carries_.forget_examples();
        remarks_.emplace_back(
            "what its examples carried is left, for batches are cut "
            "into other passes here");
      }
      return seek_anew();
    }
    saved_ = state_.step;
    if (!state_.best) return;
    const std::string best = checkpoints_.path(state_.best->step);
    try {
      read_weights(best);
    } catch (const Error&) {
      remarks_.push_back("the best checkpoint, " + best +
                         ", is gone; the best is sought anew");
      seek_anew();
    }
  }

  // `end` is why it ended, or empty: a signal came.
  TrainResult finished(const std::string& end) {
    std::optional<Score> test;
    if (!end.empty() && state_.best) {
      const std::string best = checkpoints_.path(state_.best->step);
      const Record carry = load_weights(objective_.model(), read_weights(best), best);
      test = score_of("test", &carry);
      if (test) journal_->metrics("test", state_.step, measures_of("test", *test));
    }
    state_.seconds = seconds();
    note_peak();
    const int signal = end.empty() || (state_.best && !test) ? StopSignals::noted() : 0;
    const TrainResult result{.step = state_.step,
                             .examples = state_.examples,
                             .tokens = state_.tokens,
                             .seconds = state_.seconds,
                             .peak_bytes = state_.peak_bytes,
                             .flops = state_.flops,
                             .best = state_.best,
                             .test = test,
                             .end = signal ? "a signal came" : end,
                             .signal = signal};
    std::ostringstream line;
    line << "stops after step " << state_.step << ": " << result.end << "; "
         << duration(state_.seconds) << " in all";
    journal_->say(line.str());
    journal_->flush();
    return result;
  }

  struct Window {  // since the last line of progress
    double loss = 0, right = 0, norm = 0, rate = 0;
    int64_t answers = 0, steps = 0;
  };
  struct Mark {
    double seconds = 0;
    int64_t tokens = 0;
  };

  Objective& objective_;
  std::vector<Tensor> buffers_;  // before the step under way
  TrainOptions options_;
  RunOptions run_;
  torch::Device device_;
  int64_t longest_ = 1;  // of all examples
  AdamW optimizer_;
  RunFolder folder_;
  Checkpoints checkpoints_;
  Schedule schedule_;
  WeightAverage average_;
  Carries carries_;
  PeakBytes peak_;
  std::optional<Journal> journal_;
  std::vector<std::string> remarks_;
  TrainingState state_;
  Window window_;
  Mark last_log_;
  int64_t saved_ = -1;
  double seconds_before_ = 0;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace

void check_samples(const Objective& objective, int64_t samples) {
  if (samples == 0) return;
  require(objective.samples(),
          "no mechanism of the model draws the keys it meets, so that all samples are "
          "alike; it needs one such as ssa");
  require(!is_of_examples(objective.carry()),
          "a model that carries something of its examples from batch to batch is not ",
          "averaged over samples");
}

std::optional<Score> score(Objective& objective, const Dataset& examples,
                           const ScoreOptions& options) {
  const torch::NoGradGuard without_gradients;
  objective.model().eval();
  const bool in_streams = is_of_examples(objective.carry());
  check_samples(objective, options.samples);
  std::vector<int64_t> order(static_cast<size_t>(examples.size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  auto each = static_cast<size_t>(options.batch);
  if (in_streams) {
    // The last streams may end before the others.
    each = std::min(each, order.size());
    const size_t length = (order.size() + each - 1) / std::max<size_t>(1, each);
    const auto count = static_cast<int64_t>(order.size());
    order.clear();
    for (size_t at = 0; at < length; ++at)
      for (size_t stream = 0; stream < each; ++stream) {
        const auto number = static_cast<int64_t>(stream * length + at);
        order.push_back(number < count ? number : -1);
      }
  } else {
    // By length, so that there is little padding.
    std::ranges::stable_sort(order, {}, [&](int64_t i) { return examples.length(i); });
  }
  Tensor sums =
      torch::zeros(2, torch::TensorOptions(options.device).dtype(torch::kDouble));
  const std::span<const int64_t> all(order);
  const int64_t longest = longest_of(examples, all);
  Record carry = options.carry ? *options.carry : Record();
  int64_t answers = 0;
  for (size_t first = 0; first < all.size(); first += each) {
    if (options.stop && options.stop()) return std::nullopt;
    const Batch made =
        padded_batch(examples, all.subspan(first, std::min(each, all.size() - first)),
                     {.meant_for = options.device}, options.pad_to, longest);
    answers += made.answers;
    Pass pass;
    if (objective.carry() != Carry::none) pass.carry = &carry;
    const Batch batch = made.to(options.device);
    BatchSums part;
    if (options.samples > 0) {
      // Other samples for other batches, in whatever order they come.
      pass.draw = Draw(static_cast<uint64_t>(all[first]));
      part = objective.evaluate_mean(batch, pass, options.samples);
    } else {
      part = objective.evaluate(batch, pass);
    }
    sums += torch::stack({part.loss.to(torch::kDouble), part.right.to(torch::kDouble)});
  }
  sums = sums.cpu();
  const auto count = static_cast<double>(std::max<int64_t>(1, answers));
  return Score{.loss = sums[0].item<double>() / count,
               .accuracy = sums[1].item<double>() / count,
               .answers = answers};
}

void check_training(Objective& objective, const TrainOptions& options) {
  argument([&] {
    require(options.steps > 0 || options.epochs > 0 || options.tokens > 0 ||
                options.minutes > 0,
            "training needs an end: train.steps, train.epochs, train.tokens or ",
            "train.minutes");
    require(options.first_batch <= options.batch, "train.first_batch, ",
            options.first_batch, ", must not be more than train.batch, ",
            options.batch);
    require(options.first_batch == 0 || options.ramp_steps > 0,
            "train.first_batch needs train.ramp_steps");
    require(options.ramp_steps == 0 || !is_of_examples(objective.carry()),
            "train.ramp_steps: the model carries something of each example from batch ",
            "to batch, so batches must be of one size");
    const int64_t examples = objective.examples("train").size();
    require(options.batch <= examples || !is_of_examples(objective.carry()),
            "train.batch, ", options.batch, ", must be at most the ", examples,
            " examples: the model carries something of each from batch to batch, so ",
            "they come in as many streams");
    require(
        options.full_share == 0 || total_steps(objective, options) > 0,
        "train.full_share is of the steps, so it needs train.steps or train.epochs");
    device_of(options);
    Schedule(options.learning_rate, options.schedule, total_steps(objective, options));
  });
  for (const char* split : {"train", "valid", "test"})
    require(objective.examples(split).size() > 0, "there are no examples in ", split);
}

TrainResult train(Objective& objective, const TrainOptions& options,
                  const RunOptions& run) {
  check_training(objective, options);
  prepare_device(options);
  return Training(objective, options, run).run();
}

Record load_weights(torch::nn::Module& model, const NamedTensors& weights,
                    const std::string& source) {
  const torch::NoGradGuard without_gradients;
  size_t known = 0;
  torch::Device device = torch::kCPU;
  const auto take = [&](const std::string& name, Tensor into) {
    const auto found = weights.find(name);
    require(found != weights.end(), source, ": lacks ", name,
            ", which this model has; is it the checkpoint of another model?");
    require(found->second.sizes() == into.sizes(), source, ": ", name, " must be ",
            shape(into), ", got ", shape(found->second));
    into.detach().copy_(found->second);
    device = into.device();
    ++known;
  };
  for (const auto& entry : model.named_parameters()) take(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) take(entry.key(), entry.value());
  for (const auto& [name, tensor] : weights) known += is_carried(name) ? 1 : 0;
  require(known == weights.size(), source, ": has ", weights.size(),
          " tensors, but this model has ", known);
  return carry_of_model(weights, device);
}

}  // namespace longspan
