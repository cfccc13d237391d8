#include "batch/scheduler.h"

#include "batch/failure.h"

#include <algorithm>

namespace token_trie {
namespace {

// Rows of a pass: enough for llama.cpp's full speed, and soon over.
constexpr std::size_t kRows = 256;
// Prompts retained that nobody has shared yet.
constexpr std::ptrdiff_t kUnshared = 8;
// Requests looked at for one to admit, for each id.
constexpr std::size_t kLookAhead = 4;
// Requests that came later and may go before the one that waits longest; with chunks, where it leaves them cells.
constexpr std::size_t kOvertakers = 64;
constexpr std::size_t kOvertakersOfChunks = 4096;
// Of the cells, the part that is reserved for short prompts.
constexpr std::size_t kReserve = 8;
// Tokens at a text's end that who goes on behind it may spell anew.
constexpr std::size_t kSeam = 8;

std::size_t checked_ids(const ContextMaker & maker, std::size_t wanted) {
    const std::size_t n = wanted == 0 ? maker.max_ids() : std::min(wanted, maker.max_ids());
    if (n < 2) {
        throw Error(Status::argument,
                    "the context holds one sequence alone: the model keeps a state that sequences cannot share, or the "
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
      n_chunk_(std::min(options.n_chunk, n_batch_)),
      depth_(depth_of(llama_get_model(context_.get()))),
      n_cells_max_(llama_n_ctx(context_.get())),
      n_reserved_(n_chunk_ == 0 ? 0 : n_cells_max_ / kReserve),
      n_ctx_max_(n_cells_max_ - n_reserved_),
      n_paths_(std::max<std::size_t>(std::min(maker.max_ids(), n_frugal_ids(vocab_)), 2) - 1),
      cells_(memory_, n_ids_, n_swa_),
      n_shared_(n_ids_),
      holds_text_(n_ids_),
      texts_(n_ids_) {
    empty_.reserve(n_ids_);
    retained_.reserve(n_ids_);
    clear_cache();
}

Scheduler::~Scheduler() = default;

void Scheduler::clear_cache() noexcept {
    retained_.clear();
    cells_.clear();
    empty_.clear();
    for (auto id = static_cast<llama_seq_id>(n_ids_); id > 0;) {
        empty_.push_back(--id);
    }
}

void Scheduler::add(Requests & requests) noexcept {
    while (!requests.empty()) {
        Requests::node_type each = requests.extract(requests.begin());
        (is_behind_text(each.mapped().prompt) ? behind_texts_ : waiting_).insert(std::move(each));
    }
}

// Not of a prompt that was one's own before, and comes again.
bool Scheduler::is_behind_text(const std::vector<Token> & prompt) const noexcept {
    return std::any_of(retained_.begin(), retained_.end(), [&](llama_seq_id id) {
        const auto i = static_cast<std::size_t>(id);
        const std::size_t n = holds_text_[i] ? cells_.n_common(id, prompt) : 0;
        return n > texts_[i].begin && n + kSeam >= texts_[i].end;
    });
}

void Scheduler::cancel(Ticket ticket, const OnAnswer & on_answer) noexcept {
    if (waiting_.erase(ticket) + behind_texts_.erase(ticket) + apart_.erase(ticket) == 0) {
        const auto job =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const Job & each) { return each.ticket() == ticket; });
        if (job == jobs_.end()) {
            return;
        }
        end(job);
    }
    on_answer(ticket, failure(Status::cancelled, "cancelled"));
}

void Scheduler::admit(BatchRows & rows, std::size_t part, const OnAnswer & on_answer) {
    is_apart_ = is_apart_ && !jobs_.empty();
    if (is_apart_ || !apart_.empty()) {
        admit_apart(rows, on_answer);
        return;
    }
    const std::size_t max_overtaken = n_chunk_ == 0 ? kOvertakers : kOvertakersOfChunks;
    bool has_long_waiting = false;
    // Whether those behind it may go on.
    const auto admit_one = [&](Requests & from, Requests::iterator at) {
        const Ticket ticket = at->first;
        const bool is_oldest = ticket == oldest().begin()->first;
        const bool waits_as_long = is_long(at->second.prompt);
        try {
            if ((waits_as_long && has_long_waiting) || !begin(ticket, at->second, has_long_waiting, on_answer)) {
                has_long_waiting = has_long_waiting || waits_as_long;
                return waits_as_long;
            }
        } catch (...) {
            if (!cells_.has_count()) {
                throw;
            }
            on_answer(ticket, failure());
            reclaim_ids();
        }
        n_overtaken_ = is_oldest ? 0 : n_overtaken_ + 1;
        from.erase(at);
        if (!jobs_.empty()) {
            jobs_.back().plan(rows, is_long(jobs_.back().n_own()) ? 0 : part);
        }
        return true;
    };
    if (n_overtaken_ >= max_overtaken && rows.fits(true) && !oldest().empty() &&
        !admit_one(oldest(), oldest().begin())) {
        return;
    }
    std::size_t n_left = kLookAhead * n_ids_;
    for (Requests * const from : {&behind_texts_, &waiting_}) {
        for (auto next = from->begin(); next != from->end() && n_left > 0 && rows.fits(true); --n_left) {
            const auto at = next++;
            if (n_overtaken_ < max_overtaken && !is_worth_waiting(at->second.prompt) && !admit_one(*from, at)) {
                return;
            }
        }
    }
}

void Scheduler::admit_apart(BatchRows & rows, const OnAnswer & on_answer) {
    if (!jobs_.empty()) {
        return;
    }
    const auto at = apart_.begin();
    try {
        if (!begin(at->first, at->second, /* has_long_waiting = */ false, on_answer)) {
            clear_cache();  // beside nothing it fits, in the next pass
            return;
        }
    } catch (...) {
        if (!cells_.has_count()) {
            throw;
        }
        on_answer(at->first, failure());
        reclaim_ids();
    }
    apart_.erase(at);
    is_apart_ = true;
    for (Job & job : jobs_) {
        job.plan(rows, n_batch_);
    }
}

// Of the two, the one that has who waits longest; empty: nobody waits.
Scheduler::Requests & Scheduler::oldest() noexcept {
    const bool is_behind =
        waiting_.empty() || (!behind_texts_.empty() && behind_texts_.begin()->first < waiting_.begin()->first);
    return is_behind ? behind_texts_ : waiting_;
}

// False where it has to wait for others to end. What throws has left ids to be reclaimed.
bool Scheduler::begin(Ticket ticket, Request & request, bool has_long_waiting, const OnAnswer & on_answer) {
    const std::vector<Token> & prompt = request.prompt;
    auto [source, n_shared] = find_source(prompt);
    const std::size_t n_needed = prompt.size() - n_shared + request.max_tokens();
    if (!has_reserve(n_needed, is_long(prompt.size() - n_shared), has_long_waiting)) {
        return false;
    }
    while (n_cells_left() < n_needed && evict_one(source)) {
    }
    const bool is_kept = is_retained(source);
    if (!is_kept && n_cells_left() < n_needed) {
        return false;
    }
    std::optional<llama_seq_id> path_id;
    if (outgrows_window(request)) {
        path_id = free_id(source);
        if (*path_id < 0) {
            return false;
        }
    }
    const auto return_path_id = [&] {
        if (path_id) {
            empty_.push_back(*path_id);
        }
    };
    llama_seq_id id = -1;
    if (!is_kept || (was_shared(source) && n_cells_left() >= n_needed)) {
        id = free_id(source);
    }
    if (id >= 0) {
        if (source >= 0) {
            cells_.share(source, id, n_shared);
        }
    } else if (is_kept) {
        id = source;
        cells_.cut(id, n_shared);
        if (n_cells_left() < n_needed) {
            return_path_id();
            return false;
        }
        retained_.erase(std::find(retained_.begin(), retained_.end(), id));
    } else {
        return_path_id();
        return false;
    }
    count_shared(source, id, n_shared);
    holds_text_[static_cast<std::size_t>(id)] = false;
    jobs_.emplace_back(ticket, std::move(request), vocab_, memory_, id, path_id, n_shared, n_paths_);
    if (jobs_.back().is_done()) {
        answer(std::prev(jobs_.end()), on_answer);
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

// One that nobody has shared, if there is one, and rather no text, behind which somebody may be about to go on.
bool Scheduler::evict_one(llama_seq_id but, bool texts_too) noexcept {
    constexpr int kStays = 4;
    const auto rank = [&](llama_seq_id each) {
        const auto i = static_cast<std::size_t>(each);
        const bool stays = each == but || (holds_text_[i] && !texts_too);
        return stays ? kStays : (was_shared(each) ? 2 : 0) + (holds_text_[i] ? 1 : 0);
    };
    const auto at = std::min_element(retained_.begin(), retained_.end(),
                                     [&](llama_seq_id a, llama_seq_id b) { return rank(a) < rank(b); });
    if (at == retained_.end() || rank(*at) == kStays) {
        return false;
    }
    release(*at);
    retained_.erase(at);
    return true;
}

void Scheduler::release(llama_seq_id id) noexcept {
    cells_.cut(id, 0);
    n_shared_[static_cast<std::size_t>(id)] = 0;
    empty_.push_back(id);
}

// Those that nobody has.
void Scheduler::reclaim_ids() noexcept {
    empty_.clear();
    for (auto id = static_cast<llama_seq_id>(n_ids_); id-- > 0;) {
        const auto has = [id](const auto & ids) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
        if (!has(retained_) && std::none_of(jobs_.begin(), jobs_.end(),
                                            [&](const Job & job) { return job.id() == id || has(job.lent()); })) {
            release(id);
        }
    }
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
    std::size_t n = cells_.n_cells();
    for (const Job & job : jobs_) {
        n += job.n_prompt_left() + job.n_cells();
    }
    return n_cells_max_ - std::min(n_cells_max_, n);
}

void Scheduler::end(Jobs::iterator job) noexcept {
    job->clear_cache(cells_);
    for (const llama_seq_id id : job->lent()) {
        empty_.push_back(id);
    }
    const llama_seq_id id = job->id();
    const bool holds_text = job->has_kept_text();
    texts_[static_cast<std::size_t>(id)] = job->kept_text();
    jobs_.erase(job);
    retain(id, holds_text);
}

// Unless another one retained holds most of it, or nothing can begin with it.
void Scheduler::retain(llama_seq_id id, bool holds_text) noexcept {
    cut_to_shared(id);
    const std::size_t n_held = cells_.n_held(id);
    const std::size_t n_may_go = was_shared(id) || holds_text ? kMinShared : n_held / 2;
    const auto like = std::find_if(retained_.begin(), retained_.end(), [&](llama_seq_id each) {
        const std::size_t n = cells_.n_common(each, id);
        return n + n_may_go >= n_held && cells_.has_window(each, n);
    });
    if (n_held == 0 || like != retained_.end() || !cells_.has_window(id, n_held)) {
        release(id);
        if (like != retained_.end()) {
            std::rotate(like, std::next(like), retained_.end());
        }
        return;
    }
    retained_.push_back(id);
    holds_text_[static_cast<std::size_t>(id)] = holds_text;
    if (holds_text) {
        return;
    }
    const auto n_retained = [&](bool with_shared) {
        return std::count_if(retained_.begin(), retained_.end(), [&](llama_seq_id each) {
            const auto i = static_cast<std::size_t>(each);
            return !holds_text_[i] && (with_shared || !was_shared(each));
        });
    };
    if (n_retained(false) > kUnshared ||
        n_retained(true) > std::max(static_cast<std::ptrdiff_t>(n_ids_ / 4), std::ptrdiff_t{1})) {
        evict_one(id, /* texts_too = */ false);
    }
}

}  // namespace token_trie
