#include "batch/scheduler.h"

#include <algorithm>
#include <new>

namespace token_trie {
namespace {

// Rows of a pass: enough for llama.cpp's full speed, and soon over.
constexpr std::size_t kRows = 256;
// Prompts at rest that nobody has shared yet.
constexpr std::ptrdiff_t kUnshared = 8;
// Questions looked at for one to let in, for each id.
constexpr std::size_t kLookAhead = 4;

Answer failure(const Error & error) {
    Answer answer;
    answer.status = error.status();
    answer.message = error.what();
    return answer;
}

std::size_t checked_ids(const ContextMaker & maker, std::size_t wanted) {
    const std::size_t n = wanted == 0 ? maker.max_ids() : std::min(wanted, maker.max_ids());
    if (n < 2) {
        throw Error(Status::argument,
                    "there is room for one sequence alone: the model keeps a state that sequences cannot share, or the "
                    "context is too small");
    }
    return n;
}

OwnedContext make_context(const ContextMaker & maker, std::size_t n_ids) {
    OwnedContext context = maker.make(maker.max_tokens(), n_ids);
    if (context == nullptr) {
        throw Error(Status::memory, "no context of " + std::to_string(maker.max_tokens()) + " tokens could be made");
    }
    return context;
}

}  // namespace

Scheduler::Scheduler(const ContextMaker & maker, const Options & options)
    : n_ids_(checked_ids(maker, options.n_ids)),
      context_(make_context(maker, n_ids_)),
      n_swa_(llama_model_n_swa(llama_get_model(context_.get()))),
      memory_(llama_get_memory(context_.get())),
      vocab_(llama_model_get_vocab(llama_get_model(context_.get()))),
      n_batch_(std::min<std::size_t>(options.n_batch == 0 ? kRows : options.n_batch, llama_n_ubatch(context_.get()))),
      capacity_(llama_n_ctx(context_.get())),
      n_paths_(std::max<std::size_t>(std::min(maker.max_ids(), n_frugal_ids(vocab_)), 2) - 1),
      held_(memory_, n_ids_, n_swa_),
      n_shared_(n_ids_),
      holds_text_(n_ids_) {
    empty_.reserve(n_ids_);
    resting_.reserve(n_ids_);
    clear();
}

void Scheduler::clear() noexcept {
    waiting_.clear();
    jobs_.clear();
    clear_cache();
}

void Scheduler::clear_cache() noexcept {
    resting_.clear();
    held_.clear();
    empty_.clear();
    for (auto id = static_cast<llama_seq_id>(n_ids_); id > 0;) {
        empty_.push_back(--id);
    }
}

// Who asks behind a text that has ended comes first, as long as it is there.
void Scheduler::add(Ticket ticket, Question question) {
    const auto [source, n_shared] = find_source(question.prompt);
    const bool is_next =
        source >= 0 && holds_text_[static_cast<std::size_t>(source)] && n_shared + kMuch >= held_.n_held(source);
    waiting_.insert(is_next ? waiting_.begin() : waiting_.end(), {ticket, std::move(question)});
}

void Scheduler::cancel(Ticket ticket, Answers & answers) {
    const Answer cancelled = failure(Error(Status::cancelled, "cancelled"));
    const auto waiting =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting & each) { return each.ticket == ticket; });
    if (waiting != waiting_.end()) {
        answers.emplace_back(ticket, cancelled);
        waiting_.erase(waiting);
        return;
    }
    const auto job =
        std::find_if(jobs_.begin(), jobs_.end(), [&](const Job & each) { return each.ticket() == ticket; });
    if (job != jobs_.end()) {
        answers.emplace_back(ticket, cancelled);
        end(job);
    }
}

void Scheduler::pass(Answers & answers) {
    PassRows rows;
    rows.max_rows = n_batch_;
    rows.max_wanted = n_ids_;
    plan(rows, answers);
    if (rows.tokens.empty()) {
        return;
    }
    try {
        decode(rows);
        for (const Job & job : jobs_) {
            held_.append(job.id(), job.prompt().data() + job.prompt().size() - job.n_prompt_left(), job.n_planned());
        }
    } catch (const Error & error) {
        fail_all(error, answers);
        return;
    }
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        const auto next = std::next(job);
        try {
            job->take([this](const WantedRow & row, const Walk * walk) { return logits_of(row, walk); });
        } catch (const Error & error) {
            answers.emplace_back(job->ticket(), failure(error));
            end(job);
            job = next;
            continue;
        }
        if (job->is_decided()) {
            answer(job, answers);
        }
        job = next;
    }
}

// Of what is decided; it ends.
void Scheduler::answer(Jobs::iterator job, Answers & answers) {
    try {
        answers.emplace_back(job->ticket(), job->answer());
        job->keep_text(held_);
    } catch (const Error & error) {
        answers.emplace_back(job->ticket(), failure(error));
    }
    end(job);
}

// First what is nearest to its answer.
void Scheduler::plan(PassRows & rows, Answers & answers) {
    for (Job & job : jobs_) {
        if (job.needs_wave()) {
            lend_ids(job);
            // Of a large tree, no more than a pass or so at a time.
            job.place_wave(std::max(job.n_cells(), std::min(job.n_cells() + n_cells_left(), 2 * n_batch_)));
        }
        if (job.n_prompt_left() == 0) {
            job.plan(rows, 0);
        }
    }
    // A long prompt leaves room for others, as long as there are any.
    const std::size_t part = std::max<std::size_t>(rows.max_rows / 2, 1);
    for (Job & job : jobs_) {
        job.plan(rows, part);
    }
    let_in(rows, part, answers);
    for (Job & job : jobs_) {
        job.plan(rows, rows.max_rows);
    }
}

void Scheduler::let_in(PassRows & rows, std::size_t part, Answers & answers) {
    const std::size_t n_looked_at = std::min(waiting_.size(), kLookAhead * n_ids_);
    std::size_t n_kept = 0;
    for (std::size_t i = 0; i < n_looked_at && rows.has_room(true); ++i) {
        if (is_worth_waiting(waiting_[n_kept].question.prompt)) {
            ++n_kept;
            continue;
        }
        if (!begin(waiting_[n_kept], answers)) {
            return;
        }
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(n_kept));
        if (!jobs_.empty()) {
            jobs_.back().plan(rows, part);
        }
    }
}

// False where it has to wait for others to end.
bool Scheduler::begin(Waiting & waiting, Answers & answers) {
    const std::vector<Token> & prompt = waiting.question.prompt;
    auto [source, n_shared] = find_source(prompt);
    const std::size_t n_needed = prompt.size() - n_shared + waiting.question.max_tokens();
    while (n_cells_left() < n_needed && evict_one(source)) {
    }
    const bool rests = is_resting(source);
    if (!rests && n_cells_left() < n_needed) {
        return false;
    }
    std::optional<llama_seq_id> path_id;
    if (outgrows_window(waiting.question)) {
        path_id = free_id(source);
        if (*path_id < 0) {
            return false;
        }
    }
    const auto give_back = [&] {
        if (path_id) {
            empty_.push_back(*path_id);
        }
    };
    llama_seq_id id = -1;
    if (!rests || (was_shared(source) && n_cells_left() >= n_needed)) {
        id = free_id(source);
    }
    if (id >= 0) {
        if (source >= 0) {
            held_.share(source, id, n_shared);
        }
    } else if (rests) {
        id = source;
        held_.cut(id, n_shared);
        if (n_cells_left() < n_needed) {
            give_back();
            return false;
        }
        resting_.erase(std::find(resting_.begin(), resting_.end(), id));
    } else {
        give_back();
        return false;
    }
    count_shared(source, id, n_shared);
    holds_text_[static_cast<std::size_t>(id)] = false;
    const Ticket ticket = waiting.ticket;
    try {
        jobs_.emplace_back(ticket, std::move(waiting.question), vocab_, memory_, id, path_id, n_shared, n_paths_);
    } catch (const Error & error) {
        answers.emplace_back(ticket, failure(error));
        give_back();
        let_rest(id);
        return true;
    }
    if (jobs_.back().is_decided()) {
        answer(std::prev(jobs_.end()), answers);
    }
    return true;
}

// -1 where there is none.
llama_seq_id Scheduler::free_id(llama_seq_id but) {
    if (empty_.empty() && !evict_one(but)) {
        return -1;
    }
    const llama_seq_id id = empty_.back();
    empty_.pop_back();
    return id;
}

// One that nobody has shared, if there is one, and rather no text, behind which somebody may be about to ask.
bool Scheduler::evict_one(llama_seq_id but, bool texts_too) noexcept {
    constexpr int kStays = 4;
    const auto rank = [&](llama_seq_id each) {
        const auto i = static_cast<std::size_t>(each);
        const bool stays = each == but || (holds_text_[i] && !texts_too);
        return stays ? kStays : (was_shared(each) ? 2 : 0) + (holds_text_[i] ? 1 : 0);
    };
    const auto at = std::min_element(resting_.begin(), resting_.end(),
                                     [&](llama_seq_id a, llama_seq_id b) { return rank(a) < rank(b); });
    if (at == resting_.end() || rank(*at) == kStays) {
        return false;
    }
    give_up(*at);
    resting_.erase(at);
    return true;
}

void Scheduler::give_up(llama_seq_id id) noexcept {
    held_.cut(id, 0);
    n_shared_[static_cast<std::size_t>(id)] = 0;
    empty_.push_back(id);
}

// Some stay for prompts to come.
void Scheduler::lend_ids(Job & job) {
    const std::size_t n_reserved = n_ids_ / 8;
    for (std::size_t n = job.n_ids_wanted(); n > 0 && empty_.size() > n_reserved; --n) {
        job.lend(empty_.back());
        empty_.pop_back();
    }
}

// Beside what jobs have a right to.
std::size_t Scheduler::n_cells_left() const noexcept {
    std::size_t n = held_.n_cells();
    for (const Job & job : jobs_) {
        n += job.n_prompt_left() + job.n_cells();
    }
    return capacity_ - std::min(capacity_, n);
}

void Scheduler::decode(PassRows & rows) {
    const llama_batch batch = {static_cast<std::int32_t>(rows.tokens.size()),
                               rows.tokens.data(),
                               nullptr,
                               rows.positions.data(),
                               rows.n_ids.data(),
                               rows.ids.data(),
                               rows.wanted.data()};
    const std::int32_t result = head_.decode(context_.get(), batch, rows.n_wanted > 0 && rows.are_few);
    if (result != 0) {
        throw Error(Status::context,
                    result == 1 ? "the context is full" : "llama_decode failed with " + std::to_string(result));
    }
}

const float * Scheduler::logits_of(const WantedRow & row, const Walk * walk) {
    if (head_.was_cut()) {
        few_logits_.resize(static_cast<std::size_t>(llama_vocab_n_tokens(vocab_)));
        head_.multiply(walk->allowed(), llama_n_threads(context_.get()), few_logits_.data(), row.output);
        return few_logits_.data();
    }
    const float * logits = llama_get_logits_ith(context_.get(), row.row);
    if (logits == nullptr) {
        throw Error(Status::context, "the context gives no logits");
    }
    return logits;
}

void Scheduler::end(Jobs::iterator job) noexcept {
    job->clear_cache(memory_);
    for (const llama_seq_id id : job->lent()) {
        empty_.push_back(id);
    }
    const llama_seq_id id = job->id();
    const bool holds_text = job->has_kept_text();
    jobs_.erase(job);
    let_rest(id, holds_text);
}

// Unless another at rest holds most of it, or nothing can begin with it.
void Scheduler::let_rest(llama_seq_id id, bool holds_text) noexcept {
    cut_to_shared(id);
    const std::size_t n_held = held_.n_held(id);
    const std::size_t n_may_go = was_shared(id) || holds_text ? kMuch : n_held / 2;
    const auto like = std::find_if(resting_.begin(), resting_.end(), [&](llama_seq_id each) {
        const std::size_t n = held_.n_common(each, id);
        return n + n_may_go >= n_held && held_.has_window(each, n);
    });
    if (n_held == 0 || like != resting_.end() || !held_.has_window(id, n_held)) {
        give_up(id);
        if (like != resting_.end()) {
            std::rotate(like, std::next(like), resting_.end());
        }
        return;
    }
    resting_.push_back(id);
    holds_text_[static_cast<std::size_t>(id)] = holds_text;
    if (holds_text) {
        return;
    }
    const auto n_resting = [&](bool with_shared) {
        return std::count_if(resting_.begin(), resting_.end(), [&](llama_seq_id each) {
            const auto i = static_cast<std::size_t>(each);
            return !holds_text_[i] && (with_shared || !was_shared(each));
        });
    };
    if (n_resting(false) > kUnshared ||
        n_resting(true) > std::max(static_cast<std::ptrdiff_t>(n_ids_ / 4), std::ptrdiff_t{1})) {
        evict_one(id, /* texts_too = */ false);
    }
}

void Scheduler::fail_all(const Error & error, Answers & answers) {
    for (const Job & job : jobs_) {
        answers.emplace_back(job.ticket(), failure(error));
    }
    jobs_.clear();
    clear_cache();
}

}  // namespace token_trie
