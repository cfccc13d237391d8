#include "context/sequence.h"

#include <array>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// A batch of up to so many tokens is as much a step as a prompt, and takes the threads of one: all threads that there
// are would wait for each other longer than they work.
constexpr std::size_t kStep = 32;

// A text of so many new tokens is worth a snapshot after it, and where texts part, so many are.
constexpr std::size_t kMinText = 8;
constexpr std::size_t kMinShared = 16;
// Where a text of more new tokens than these may part from the next, before its end: no other is known yet.
constexpr std::size_t kLongText = 128;
constexpr std::array<std::size_t, 2> kBeforeEnd{64, 16};

std::size_t n_held_by(llama_context * context, std::int32_t id) {
    const std::int64_t last = llama_memory_seq_pos_max(llama_get_memory(context), id);  // -1: none
    return static_cast<std::size_t>(last + 1);
}

// Throws Error (context) where a sequence of this kind of model, of which a context holds positions, does not hold n
// tokens, or not so that it can be cut off after them.
void check_holds(llama_context * from, std::int32_t id, std::size_t n) {
    const llama_model * model = llama_get_model(from);
    llama_memory_t memory = llama_get_memory(from);
    const llama_pos first = llama_memory_seq_pos_min(memory, id);
    const std::size_t n_held = n_held_by(from, id);
    throw_if(n_held < n, Status::context, "from: its sequence holds ", n_held, " tokens, not ", n);
    if (has_states(model)) {
        throw_if(n_held > n, Status::context, "from: its sequence holds ", n_held,
                 " tokens, of which the model's state cannot be cut to ", n);
        return;
    }
    // With sliding attention, llama.cpp copies the window before the end.
    const auto n_swa = static_cast<llama_pos>(llama_model_n_swa(model));
    const llama_pos first_copied = n_swa == 0 ? first : std::max(first, static_cast<llama_pos>(n_held) - n_swa);
    const llama_pos first_needed = n_swa == 0 ? 0 : std::max(0, static_cast<llama_pos>(n) - n_swa + 1);
    throw_if(first_copied > first_needed, Status::context, "from: its sequence does not hold what comes before ", n,
             " tokens");
}

}  // namespace

void Sequence::replace(std::vector<Token> tokens, const std::atomic<bool> & cancelled) {
    check_fits(tokens.size(), n_ctx_max());
    const std::size_t n_same = common_prefix(tokens_, tokens);
    const auto switch_to = [&](std::vector<Token> & other) {
        tokens_.swap(other);
        count_cached(n_same);
    };
    switch_to(tokens);
    try {
        static_cast<void>(logits({true, {}, {}}, false, cancelled));
        if (cancelled) {  // in the last pass
            throw Error(Status::cancelled, "cancelled");
        }
    } catch (...) {
        switch_to(tokens);
        throw;
    }
}

void Sequence::append(Token token) {
    check_not_full();
    tokens_.push_back(token);
}

void Sequence::check_not_full() const {
    const std::size_t n_max = n_ctx_max();
    throw_if(tokens_.size() >= n_max, Status::context, "the context of ", n_max, " tokens is full");
}

void Sequence::cut(std::size_t n) {
    if (n >= tokens_.size()) {
        return;
    }
    tokens_.resize(n);
    count_cached(n);
}

const float * Sequence::logits(const AllowedSet & wanted, bool step_by_step, const std::atomic<bool> & cancelled) {
    const bool few = OutputHead::are_few(wanted, context_.n_vocab());
    const bool is_on_device =
        evaluate(step_by_step, !step_by_step && few, few ? &wanted : nullptr, DeviceHead::Want::logits, cancelled);
    const float * logits =
        is_on_device ? context_.wait_for([&] { return device_.fetch(wanted); }) : logits_.get(context_, wanted);
    or_forget([&] { check_finite(logits, wanted, context_.n_vocab()); });
    return logits;
}

std::vector<float> Sequence::hidden_state(const std::atomic<bool> & cancelled) {
    if (!has_logits() || !logits_.are_of_last_pass()) {
        logits_.forget();
        evaluate(/* step_by_step = */ false, /* cut = */ true, nullptr, DeviceHead::Want::logits, cancelled,
                 /* needs_pass = */ true);
    }
    std::vector<float> state = context_.wait_for([&] {
        llama_synchronize(context());
        return context_.head().hidden_state();
    });
    or_forget([&] { check_finite(state); });
    return state;
}

std::optional<DeviceHead::Best> Sequence::best(const AllowedSet & wanted,
                                               bool step_by_step,
                                               const std::atomic<bool> & cancelled) {
    if (!is_on_device() || has_logits()) {
        return std::nullopt;
    }
    const bool cut = !step_by_step && OutputHead::are_few(wanted, context_.n_vocab());
    if (!evaluate(step_by_step, cut, &wanted, DeviceHead::Want::best, cancelled)) {
        return std::nullopt;
    }
    const DeviceHead::Best best = context_.wait_for([&] { return device_.best(); });
    or_forget([&] { check_finite({best.logprob}); });
    return best;
}

// Values that are not finite may stay in cells, beside which others are evaluated.
template <typename Check>
void Sequence::or_forget(const Check & check) {
    try {
        check();
    } catch (const NotFinite &) {
        forget_all_branches();
        throw;
    }
}

// Makes the cache hold a beginning of the tokens and nothing else, as much as it can. False where the logits after all
// of them are there; not so if a pass is needed that leaves them.
bool Sequence::catch_up(bool needs_pass) {
    if (!needs_pass && has_logits()) {
        return false;
    }
    if (n_cached_ == tokens_.size() && n_cached_ > 0) {
        // All is cached but nobody kept the logits: the last token is evaluated again.
        --n_cached_;
        cache_is_longer_ = true;
    }
    // A step of one token has nothing to gain from looking for a snapshot.
    if (cells_.has_states() && (cache_is_longer_ || tokens_.size() - n_cached_ >= kMinText)) {
        if (!import_.held.empty() && !cache_is_longer_) {
            import_.held.clear();
            keep_snapshot();
        }
        go_back(needs_pass);
    }
    trim_cache();
    return !has_logits();
}

// Evaluates the lag; with tokens wanted, the last pass ends on the device if it can, and then true is returned: the
// context has no logits, but what was wanted.
bool Sequence::evaluate(bool step_by_step,
                        bool cut,
                        const AllowedSet * wanted,
                        DeviceHead::Want want,
                        const std::atomic<bool> & cancelled,
                        bool needs_pass) {
    throw_if(tokens_.empty(), Status::argument, "nothing to go on from: prefill first");
    if (!catch_up(needs_pass)) {
        return false;
    }
    grow(tokens_.size());
    // llama.cpp evaluates so many at a time, however large the batch.
    const std::size_t n_most = step_by_step ? 1 : llama_n_ubatch(context());
    const bool is_text = tokens_.size() - n_cached_ >= kMinText;
    const std::vector<std::size_t> stops = is_text ? this->stops() : std::vector<std::size_t>();
    auto stop = stops.begin();
    while (n_cached_ < tokens_.size()) {
        throw_if(cancelled, Status::cancelled, "cancelled");
        const std::size_t n_left = tokens_.size() - n_cached_;
        const std::size_t n_to_stop = stop == stops.end() ? n_left : *stop - n_cached_;
        const std::size_t n = std::min({n_most, n_left, n_to_stop});
        const bool is_last = n == n_left;
        Token * const tokens = &tokens_[n_cached_];
        const bool ends_on_device =
            is_last && wanted != nullptr && is_on_device() &&
            device_.prepare(context(), static_cast<std::size_t>(first_free_id()), *wanted, want);
        logits_.begin_pass();
        cache_is_longer_ = true;  // some of a batch that fails may have been taken in
        if (ends_on_device) {
            check_pass(context_.decode_by(n <= kStep, [&] { return device_.decode(tokens, n, n_cached_, *wanted); }));
        } else {
            const llama_batch batch = llama_batch_get_one(tokens, static_cast<std::int32_t>(n));
            check_pass(context_.decode(batch, n <= kStep, cut && is_last));
            logits_.end_pass();
        }
        n_cached_ += n;
        cache_is_longer_ = false;
        if (ends_on_device) {
            return true;
        }
        if (stop != stops.end() && n_cached_ == *stop) {
            ++stop;
            keep_snapshot();
        }
    }
    if (is_text) {
        keep_snapshot();
    }
    return false;
}

const float * Sequence::row(std::int32_t i) {
    const float * logits = context_.wait_for([&] { return LastLogits::row_of(context_, i); });
    or_forget([&] { check_finite(logits, {true, {}, {}}, context_.n_vocab()); });
    return logits;
}

// Before the context's go.
void Sequence::keep_logits() {
    if (!has_logits()) {
        logits_.forget();  // logits of a token with others after it are not kept
    }
    logits_.keep(context_);
}

void Sequence::grow(std::size_t n_tokens, std::size_t n_ids) {
    if (cells_.has_states()) {
        n_ids = std::max<std::size_t>(n_ids, 2);  // for a snapshot
        const std::size_t n_most = std::min(context_.n_ctx_max(), std::max(2 * n_tokens, n_ctx()));
        while (!snapshots_.empty() && n_tokens + n_elsewhere() > n_most) {
            drop_snapshot();
        }
    }
    n_tokens += n_elsewhere();
    n_ids += static_cast<std::size_t>(first_free_id()) - 1;
    if (context_.has(n_tokens, n_ids)) {
        return;
    }
    trim_cache();
    keep_logits();
    device_.detach();
    context_.grow(n_tokens, n_ids);
}

// After the tokens after the first n have changed.
void Sequence::count_cached(std::size_t n) {
    if (!import_.held.empty()) {
        count_imported();
        logits_.forget();
    } else if (n_cached_ > n) {
        n_cached_ = n;
        cache_is_longer_ = true;
        logits_.forget();
    }
}

void Sequence::count_imported() {
    n_cached_ = common_prefix(import_.held, tokens_);
    cache_is_longer_ = n_cached_ < import_.held.size();
}

void Sequence::evaluate_beside(const llama_batch & batch) {
    device_.detach();
    keep_logits();
    check_pass(context_.decode(batch, /* is_step = */ true, /* cut = */ false));
}

// Before a batch fails, llama.cpp may already have taken cells out of a window, and left a gap in it.
void Sequence::check_pass(std::int32_t result) {
    if (result != 0 && (cells_.has_states() || context_.n_swa() > 0)) {
        forget_all_branches();
    }
    check_decoded(result);
}

void Sequence::forget_cache() noexcept {
    n_cached_ = 0;
    import_.held.clear();
    cache_is_longer_ = true;
    logits_.forget();
}

void Sequence::check_window() noexcept {
    if (!cells_.has_states() && !cells_.can_continue(0, n_cached_)) {
        forget_cache();
    }
}

// Drops the cache entries after n_cached_. Where the window of sliding attention before them is gone, the cache begins
// anew; with states, at a snapshot.
void Sequence::trim_cache() {
    import_.held.clear();
    if (!cache_is_longer_) {
        return;
    }
    keep_logits();
    if (cells_.has_states()) {
        go_back(/* needs_pass = */ false);
    } else if (!cells_.can_continue(0, n_cached_) || !cells_.cut(0, n_cached_)) {
        cells_.cut(0, 0);
        n_cached_ = 0;
    }
    cache_is_longer_ = false;
    if (!has_logits()) {
        logits_.forget();
    }
}

llama_seq_id Sequence::first_free_id() const noexcept {
    llama_seq_id last = 0;
    for (const auto & [branch, suspended] : suspended_) {
        last = std::max(last, suspended.id);
    }
    for (const Snapshot & snapshot : snapshots_) {
        last = std::max(last, snapshot.id);
    }
    return last + 1;
}

// Cells of suspended branches alone.
std::size_t Sequence::n_suspended() const noexcept {
    if (!cells_.has_states()) {
        return n_elsewhere();
    }
    std::size_t n = 0;
    for (auto at = suspended_.begin(); at != suspended_.end(); ++at) {
        const llama_seq_id id = at->second.id;
        std::size_t n_shared = id == 0 ? 0 : cells_.n_shared(0, id);
        for (auto other = suspended_.begin(); id != 0 && other != at; ++other) {
            n_shared = other->second.id == 0 ? n_shared : std::max(n_shared, cells_.n_shared(other->second.id, id));
        }
        n += id == 0 ? 0 : cells_.n_held(id) - n_shared;
    }
    return n;
}

// Half of the ids are left for what evaluates many nodes at a time.
bool Sequence::shares_cells() const noexcept {
    return static_cast<std::size_t>(first_free_id()) <= context_.n_ids_max() / 2;
}

// Notes in the table what the cache holds.
void Sequence::name_cells() {
    cells_.forget(0, n_cached_);
    const std::size_t n_named = cells_.n_held(0);
    cells_.append(0, tokens_.data() + n_named, n_cached_ - n_named);
}

// Tokens of a text that a snapshot is the beginning of; 0: it is not.
std::size_t Sequence::n_begun(const Snapshot & snapshot, const std::vector<Token> & tokens) const noexcept {
    const std::size_t n = cells_.n_held(snapshot.id);
    return cells_.n_common(snapshot.id, tokens) == n ? n : 0;
}

// Goes on from the longest snapshot that the tokens begin with, where that is more than the cache holds of them.
void Sequence::go_back(bool needs_pass) noexcept {
    Snapshot * best = nullptr;
    std::size_t n_best = cache_is_longer_ ? 0 : n_cached_;
    for (Snapshot & each : snapshots_) {
        const std::size_t n = n_begun(each, tokens_);
        if (n > n_best && (n < tokens_.size() || (each.logits.are_there() && !needs_pass))) {
            best = &each;
            n_best = n;
        }
    }
    if (best == nullptr && !cache_is_longer_) {
        return;
    }
    cells_.cut(0, 0);
    n_cached_ = 0;
    cache_is_longer_ = false;
    if (best == nullptr) {
        return;
    }
    try {
        cells_.share(best->id, 0, n_best);
        count_use(*best);
        n_cached_ = n_best;
        if (n_best == tokens_.size()) {
            logits_ = best->logits;
        }
    } catch (...) {  // no memory
        if (!cells_.has_count()) {
            forget_all_branches();
        }
        n_cached_ = 0;
        cells_.cut(0, 0);
    }
}

// Positions at which the lag is to leave a snapshot, in ascending order: where it parts from other texts, or if no such
// text is known, where the next one may.
std::vector<std::size_t> Sequence::stops() const {
    if (!cells_.has_states()) {
        return {};
    }
    std::vector<std::size_t> wanted(snapshots_.size());
    std::transform(snapshots_.begin(), snapshots_.end(), wanted.begin(),
                   [this](const Snapshot & each) { return cells_.n_common(each.id, tokens_); });
    std::sort(wanted.begin(), wanted.end());
    const bool is_known = !wanted.empty() && wanted.back() >= n_cached_ + kMinShared;
    if (!is_known && tokens_.size() - n_cached_ > kLongText) {
        std::transform(kBeforeEnd.begin(), kBeforeEnd.end(), std::back_inserter(wanted),
                       [this](std::size_t n) { return tokens_.size() - n; });
    }
    std::vector<std::size_t> out;
    for (const std::size_t each : wanted) {
        if (each >= (out.empty() ? n_cached_ : out.back()) + kMinShared && each < tokens_.size()) {
            out.push_back(each);
        }
    }
    return out;
}

// The longer it takes to evaluate what it has beyond the others, the later it goes (GreedyDual; Cao and Irani 1997).
void Sequence::count_use(Snapshot & snapshot) noexcept {
    const std::size_t n = cells_.n_held(snapshot.id);
    std::size_t n_others = 0;
    for (const Snapshot & each : snapshots_) {
        const std::size_t n_each = cells_.n_held(each.id);
        if (n_each < n && cells_.n_common(each.id, snapshot.id) == n_each) {
            n_others = std::max(n_others, n_each);
        }
    }
    snapshot.due = n_given_up_ + n - n_others;
}

// Makes one of what is cached, unless there is one. Without memory or an id for it there will be none.
void Sequence::keep_snapshot() noexcept {
    if (!cells_.has_states() || n_cached_ == 0 || cache_is_longer_) {
        return;
    }
    const bool has_logits = this->has_logits();
    try {
        for (Snapshot & each : snapshots_) {
            if (cells_.n_held(each.id) == n_cached_ && n_begun(each, tokens_) == n_cached_) {
                count_use(each);
                if (has_logits && !each.logits.are_there()) {
                    each.logits = logits_.copy_of(context_);
                }
                return;
            }
        }
        if (!make_room_for_snapshot()) {
            return;
        }
        name_cells();
        llama_seq_id id = 1;
        const auto is_taken = [&] {
            return std::any_of(snapshots_.begin(), snapshots_.end(), [&](const Snapshot & s) { return s.id == id; }) ||
                   std::any_of(suspended_.begin(), suspended_.end(), [&](const auto & s) { return s.second.id == id; });
        };
        while (is_taken()) {
            ++id;
        }
        snapshots_.push_back({id, has_logits ? logits_.copy_of(context_) : LastLogits(), 0});
        cells_.share(0, id, n_cached_);
        count_use(snapshots_.back());
    } catch (...) {
        if (!cells_.has_count()) {
            forget_all_branches();
        }
    }
}

// Half of the ids are left for what evaluates many nodes at a time, and half of the rest for branches.
bool Sequence::make_room_for_snapshot() noexcept {
    const std::size_t n_most = context_.n_ids_max() / 4;
    while (!snapshots_.empty() && (snapshots_.size() >= n_most || !shares_cells())) {
        drop_snapshot();
    }
    return n_most > 0 && shares_cells() && static_cast<std::size_t>(first_free_id()) < context_.n_ids();
}

void Sequence::drop_snapshot() noexcept {
    const auto first = std::min_element(snapshots_.begin(), snapshots_.end(),
                                        [](const Snapshot & a, const Snapshot & b) { return a.due < b.due; });
    n_given_up_ = first->due;
    cells_.cut(first->id, 0);
    snapshots_.erase(first);
}

Sequence::Suspended Sequence::copy_at_work() {
    keep_logits();
    trim_cache();
    Suspended out;
    out.tokens = tokens_;
    const bool shares = n_cached_ > 0 && shares_cells();
    if (shares) {
        grow(tokens_.size(), 2);
        name_cells();
        out.id = first_free_id();
    } else if (n_cached_ > 0) {
        out.state.emplace(context(), 0);
    }
    out.n_cached = n_cached_;
    out.logits = logits_;
    if (shares) {
        try {
            cells_.share(0, out.id, n_cached_);  // last, as nothing else takes them away again
        } catch (...) {
            if (!cells_.has_count()) {
                forget_all_branches();
            }
            throw;
        }
    }
    return out;
}

// In the place of what was at work, which is lost.
void Sequence::put_to_work(Suspended & branch) noexcept {
    cells_.cut(0, 0);
    bool is_there = true;
    if (branch.id != 0) {
        try {
            cells_.move(branch.id, 0);
        } catch (...) {
            forget_all_branches();
            is_there = false;
        }
    } else if (branch.state) {
        is_there = branch.state->restore(context(), 0);
    }
    tokens_ = std::move(branch.tokens);
    import_.held.clear();
    n_cached_ = branch.n_cached;
    cache_is_longer_ = false;
    logits_ = std::move(branch.logits);
    if (!is_there) {
        forget_cache();
    }
    check_window();
}

void Sequence::suspend_as(Branch branch) {
    Suspended & suspended = suspended_[branch];  // first what may fail
    try {
        suspended = copy_at_work();
    } catch (...) {
        suspended_.erase(branch);
        throw;
    }
}

Sequence::Branch Sequence::fork() {
    suspend_as(n_branches_);
    return n_branches_++;
}

void Sequence::switch_to(Branch branch) {
    if (branch == branch_) {
        return;
    }
    if (branch_ != kNone) {
        suspend_as(branch_);
    }
    const auto next = suspended_.find(branch);
    put_to_work(next->second);
    suspended_.erase(next);
    branch_ = branch;
}

void Sequence::drop(Branch branch) noexcept {
    if (branch != branch_) {
        const auto at = suspended_.find(branch);
        if (at->second.id != 0) {
            cells_.cut(at->second.id, 0);
        }
        suspended_.erase(at);
    } else if (!suspended_.empty()) {
        tokens_.clear();
        forget_cache();
        cells_.cut(0, 0);
        branch_ = kNone;
    }
}

const std::vector<Token> & Sequence::tokens(Branch branch) const {
    return branch == branch_ ? tokens_ : suspended_.at(branch).tokens;
}

std::size_t Sequence::n_cached(Branch branch) const {
    return branch == branch_ ? n_cached_ : suspended_.at(branch).n_cached;
}

void Sequence::forget_all_branches() noexcept {
    cells_.clear();
    snapshots_.clear();
    forget_cache();
    for (auto & [branch, suspended] : suspended_) {
        if (suspended.id != 0) {
            suspended.keep(0);
        }
    }
}

void Sequence::import_prefix(llama_context * from, std::int32_t id, const std::vector<Token> & tokens) {
    const std::size_t n = tokens.size();
    const std::size_t n_here = import_.held.empty() ? std::min(n_cached_, common_prefix(tokens_, tokens))
                                                    : common_prefix(import_.held, tokens);
    const bool has_snapshot = std::any_of(snapshots_.begin(), snapshots_.end(),
                                          [&](const Snapshot & each) { return n_begun(each, tokens) == n; });
    if (n <= n_here || has_snapshot) {
        return;
    }
    const llama_model * model = context_.model();
    throw_if(from == context() || llama_get_model(from) != model || llama_get_memory(from) == nullptr, Status::argument,
             "from: not another context on the stream's model, with a memory");
    throw_if(id < 0 || static_cast<std::uint32_t>(id) >= llama_n_seq_max(from), Status::argument, "sequence: ", id,
             " is none of from's");
    check_holds(from, id, n);
    const std::size_t n_held = n_held_by(from, id);
    throw_if(n_held > n_ctx_max(), Status::context, "from: its sequence's ", n_held,
             " tokens do not fit the context of ", n_ctx_max());
    const std::size_t turn = turning_point(model);
    throw_if(turn > 0 && (llama_n_ctx_seq(from) > turn) != (context_.n_ctx_max() > turn), Status::argument,
             "from: the model turns tokens by other angles in a context of its size");
    const SavedState state(from, id);
    std::vector<Token> held = tokens;  // before anything is changed, as there may be no memory
    forget_sharing();                  // an import shares no cells, and needs as many beside those of others
    grow(n_held);
    llama_memory_t memory = context_.memory();
    // Contexts from which it has worked once are made as this one is.
    std::optional<SavedState> before;
    if (from != import_.like_this && llama_memory_seq_pos_max(memory, 0) >= 0) {
        before.emplace(context(), 0);
    }
    if (!state.restore(context(), 0) ||
        (n_held > n && !llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(n), -1))) {
        if (!before || !before->restore(context(), 0)) {
            forget_cache();
        }
        throw Error(Status::context, "from: its memory is not made as the stream's is");
    }
    import_.like_this = from;
    forget_sharing();
    const bool had_logits = has_logits();
    import_.held = std::move(held);
    count_imported();
    if (!had_logits || n_cached_ != tokens_.size()) {
        logits_.forget();
    }
    import_.n_tokens += n;
}

}  // namespace token_trie
