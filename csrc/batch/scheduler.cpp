#include "batch/scheduler.h"
#include "batch/tasks.h"
#include "context/cell_table.h"

#include <algorithm>
#include <cmath>

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
// Rows for which a prompt is retained at least, without flash attention.
constexpr double kMinRetained = 256;
// A prompt's row takes this part of the time of a row alone, 0.08 to 0.22 for models of 135 million to 1.5 billion
// parameters on two processors; and to attend to a cell the other.
constexpr double kPromptRow = 0.125;
constexpr double kPromptAttention = 0.25;
// Tokens at a text's end that a later prompt may spell anew.
constexpr std::size_t kSeam = 8;
// Passes in which a prompt that is sure to come is expected.
constexpr std::size_t kPatience = 4;
// Ranks of ids that are retained; those of low rank go first.
constexpr int kText = 1;
constexpr int kShared = 2;
constexpr int kLive = 4;
constexpr int kStays = 5;
// Of cells and ids, the part that those under way which go on leave to others, and to what they themselves write next.
constexpr std::size_t kRoomOfCells = 4;
constexpr std::size_t kRoomOfIds = 8;
// Of as many rows as make a prompt a long one, those that long ones have in a pass.
constexpr double kChunk = 0.5;
// Of these, the part that they have beside others.
constexpr double kBesideOthers = 0.25;
// Passes without a short prompt after which none is expected.
constexpr std::size_t kQuiet = 32;

std::size_t checked_ids(const ContextMaker & maker, std::size_t wanted) {
    const std::size_t n = wanted == 0 ? maker.max_ids() : std::min(wanted, maker.max_ids());
    throw_if(n < 2, Status::argument,
             "the context holds one sequence alone: n_parallel is 1, the context is too small, or the model keeps a "
             "state that sequences cannot share");
    return n;
}

OwnedContext make_context(const ContextMaker & maker, std::size_t n_ids) {
    OwnedContext context = maker.make(maker.max_tokens(), n_ids);
    throw_if(context == nullptr, Status::memory, "no context of ", maker.max_tokens(), " tokens could be made");
    return context;
}

// A row after so many cells takes twice as long as one after none: attention is then as much work as the weights, of
// which it makes half as good use.
double depth_of(const llama_model * model) {
    const double n_multiplied = 4.0 * llama_model_n_embd(model) * llama_model_n_layer(model);
    return std::max(static_cast<double>(llama_model_n_params(model)) / std::max(n_multiplied, 1.0), 1.0);
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
      n_rows_anew_(std::max(depth_ * kPromptRow, kMinRetained)),
      has_flash_attention_(maker.may_use_flash_attention()),
      n_cells_max_(llama_n_ctx(context_.get())),
      n_reserved_(n_chunk_ == 0 ? 0 : n_cells_max_ / kReserve),
      n_ctx_max_(n_cells_max_ - n_reserved_),
      n_paths_(std::max<std::size_t>(std::min(maker.max_ids(), n_frugal_ids(vocab_)), 2) - 1),
      cells_(memory_, n_ids_, n_swa_),
      n_shared_(n_ids_),
      used_(n_ids_),
      kept_(n_ids_) {
    empty_.reserve(n_ids_);
    retained_.reserve(n_ids_);
    clear_cache();
}

void Scheduler::clear_cache() noexcept {
    retained_.clear();
    cells_.clear();
    n_top_ = n_idle_ = 0;
    empty_.clear();
    for (auto id = static_cast<llama_seq_id>(n_ids_); id > 0;) {
        empty_.push_back(--id);
    }
}

void Scheduler::add(Requests & requests) noexcept {
    while (!requests.empty()) {
        Requests::node_type each = requests.extract(requests.begin());
        Kept * const kept = find_kept(each.mapped().prompt);
        if (kept != nullptr) {
            kept->is_awaited = true;
        }
        (kept != nullptr ? behind_texts_ : waiting_).insert(std::move(each));
    }
}

// What a prompt goes on after; null: nothing. Not of a prompt that was one's own before, and comes again.
Scheduler::Kept * Scheduler::find_kept(const std::vector<Token> & prompt) noexcept {
    std::pair<Kept *, std::size_t> best{nullptr, 0};
    for (const llama_seq_id id : retained_) {
        Kept & kept = kept_[static_cast<std::size_t>(id)];
        const std::size_t n = kept.end > 0 ? cells_.n_common(id, prompt) : 0;
        if (n > best.second && n > kept.begin && n + kSeam >= kept.end) {
            best = {&kept, n};
        }
    }
    return best.first;
}

// Whether a prompt is about to go on after what an id holds. One that waited may have gone on after another id.
bool Scheduler::is_live(llama_seq_id id) const noexcept {
    const Kept & kept = kept_[static_cast<std::size_t>(id)];
    const bool is_awaited = kept.is_awaited && !behind_texts_.empty();
    return kept.is_whole && (is_awaited || n_passes_ - kept.since <= kPatience);
}

// Whether one more that goes on may begin: those that do so already come first.
bool Scheduler::has_room_to_go_on() noexcept {
    const auto n_live = static_cast<std::size_t>(
        std::count_if(jobs_.begin(), jobs_.end(), [](const Job & job) { return job.goes_on(); }) +
        std::count_if(retained_.begin(), retained_.end(), [&](llama_seq_id id) { return is_live(id); }));
    if (n_live == 0) {
        return true;
    }
    if (!behind_texts_.empty() || n_live + std::max<std::size_t>(n_ids_ / kRoomOfIds, 1) >= n_ids_) {
        return false;
    }
    while (n_cells_left() < n_cells_max_ / kRoomOfCells && evict_one(-1, 0)) {
    }
    return n_cells_left() >= n_cells_max_ / kRoomOfCells;
}

void Scheduler::cancel(Ticket ticket, const OnAnswer & on_answer) noexcept {
    const auto behind = behind_texts_.find(ticket);
    Kept * const kept = behind == behind_texts_.end() ? nullptr : find_kept(behind->second.prompt);
    if (kept != nullptr) {
        *kept = {};
    }
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
    // Whether those after it may go on.
    const auto admit_one = [&](Requests & from, Requests::iterator at) {
        const bool is_oldest = at->first == oldest().begin()->first;
        const bool waits_as_long = is_long(at->second.prompt);
        const bool has_waited = n_overtaken_ >= max_overtaken || (&from == &behind_texts_ && jobs_.empty());
        const int max_rank = has_waited ? kLive : kLive - 1;
        if ((waits_as_long && has_long_waiting) || !try_begin(*at, has_long_waiting, max_rank, on_answer)) {
            has_long_waiting = has_long_waiting || waits_as_long;
            return waits_as_long;
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
            if (from == &waiting_ && at->second.goes_on && !has_room_to_go_on()) {
                continue;
            }
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
    if (!try_begin(*at, /* has_long_waiting = */ false, kLive, on_answer)) {
        clear_cache();  // beside nothing it fits, in the next pass
        return;
    }
    apart_.erase(at);
    is_apart_ = true;
    for (Job & job : jobs_) {
        job.plan(rows, n_batch_);
    }
}

// Of the two, the one with the request that waits longest; empty: none waits.
Scheduler::Requests & Scheduler::oldest() noexcept {
    const bool is_behind =
        waiting_.empty() || (!behind_texts_.empty() && behind_texts_.begin()->first < waiting_.begin()->first);
    return is_behind ? behind_texts_ : waiting_;
}

// False where it has to wait for others to end; what fails is its answer.
bool Scheduler::try_begin(Requests::value_type & waiting,
                          bool has_long_waiting,
                          int max_rank,
                          const OnAnswer & on_answer) {
    try {
        return begin(waiting.first, waiting.second, has_long_waiting, max_rank, on_answer);
    } catch (...) {
        if (!cells_.has_count()) {
            throw;
        }
        on_answer(waiting.first, failure());
        reclaim_ids();
        return true;
    }
}

// What throws has left ids to be reclaimed.
bool Scheduler::begin(
    Ticket ticket, Request & request, bool has_long_waiting, int max_rank, const OnAnswer & on_answer) {
    const std::vector<Token> & prompt = request.prompt;
    auto [source, n_shared] = find_source(prompt);
    const std::size_t n_needed = prompt.size() - n_shared + request.max_tokens();
    if (!has_reserve(n_needed, is_long(prompt.size() - n_shared), has_long_waiting)) {
        return false;
    }
    while (n_cells_left() < n_needed && evict_one(source, max_rank)) {
    }
    const bool is_kept = is_retained(source);
    if (!is_kept && n_cells_left() < n_needed) {
        return false;
    }
    std::optional<llama_seq_id> path_id;
    if (outgrows_window(request)) {
        path_id = free_id(source, max_rank);
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
        id = free_id(source, max_rank);
    }
    if (id >= 0) {
        if (source >= 0) {
            cells_.share(source, id, n_shared);
            Kept & kept = kept_[static_cast<std::size_t>(source)];
            kept = kept.is_whole && kept.is_awaited ? Kept{} : kept;
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
    kept_[static_cast<std::size_t>(id)] = {};
    jobs_.emplace_back(ticket, std::move(request), vocab_, memory_, id, path_id, n_shared, n_paths_);
    if (jobs_.back().is_done()) {
        answer(std::prev(jobs_.end()), on_answer);
    }
    return true;
}

// -1 where there is none.
llama_seq_id Scheduler::free_id(llama_seq_id but, int max_rank) {
    if (empty_.empty() && !evict_one(but, max_rank)) {
        return -1;
    }
    const llama_seq_id id = empty_.back();
    empty_.pop_back();
    return id;
}

// One that nobody has shared, if there is one, and rather no text, which a later prompt may be about to go on from. Of
// those that are sure to go on, the one with the least to evaluate again.
bool Scheduler::evict_one(llama_seq_id but, int max_rank, bool texts_too) noexcept {
    const auto rank = [&](llama_seq_id each) {
        const Kept & kept = kept_[static_cast<std::size_t>(each)];
        const bool is_text = kept.end > 0 && !kept.is_whole;
        if (each == but || (is_text && !texts_too)) {
            return std::pair(kStays, std::size_t{0});
        }
        return is_live(each) ? std::pair(kLive, cells_.n_held(each))
                             : std::pair((was_shared(each) ? kShared : 0) + (is_text ? kText : 0), std::size_t{0});
    };
    const auto at = std::min_element(retained_.begin(), retained_.end(),
                                     [&](llama_seq_id a, llama_seq_id b) { return rank(a) < rank(b); });
    if (at == retained_.end() || rank(*at).first > max_rank) {
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

// Those that no job and no retained prompt has.
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
    const Job::Kept kept = job->kept();
    jobs_.erase(job);
    retain(id, kept);
}

// Unless another one retained holds most of it, or nothing can begin with it.
void Scheduler::retain(llama_seq_id id, const Job::Kept & kept) noexcept {
    cut_to_shared(id);
    const std::size_t n_held = cells_.n_held(id);
    const bool is_kept = kept.end > 0;
    const std::size_t n_may_go = kept.is_whole ? 0 : was_shared(id) || is_kept ? kMinShared : n_held / 2;
    const auto like = std::find_if(retained_.begin(), retained_.end(), [&](llama_seq_id each) {
        const std::size_t n = cells_.n_common(each, id);
        return n + n_may_go >= n_held && cells_.has_window(each, n);
    });
    if (n_held == 0 || like != retained_.end() || !cells_.has_window(id, n_held)) {
        release(id);
        if (like != retained_.end()) {
            used_[static_cast<std::size_t>(*like)] = n_rows_;
            std::rotate(like, std::next(like), retained_.end());
        }
        return;
    }
    retained_.push_back(id);
    used_[static_cast<std::size_t>(id)] = n_rows_;
    kept_[static_cast<std::size_t>(id)] = {kept, n_passes_, false};
    if (is_kept) {
        return;
    }
    const auto n_retained = [&](bool with_shared) {
        return std::count_if(retained_.begin(), retained_.end(), [&](llama_seq_id each) {
            const auto i = static_cast<std::size_t>(each);
            return kept_[i].end == 0 && (with_shared || !was_shared(each));
        });
    };
    if (n_retained(false) > kUnshared ||
        n_retained(true) > std::max(static_cast<std::ptrdiff_t>(n_ids_ / 4), std::ptrdiff_t{1})) {
        evict_one(id, kLive - 1, /* texts_too = */ false);
    }
}

void Scheduler::pass(const OnAnswer & on_answer) noexcept {
    ++n_passes_;
    try {
        rows_.clear(n_batch_, n_ids_);
        drop_scattered();
        plan(rows_, on_answer);
        if (rows_.size() == 0) {
            return;
        }
        decode(rows_);
        drop_unused();
        for (const Job & job : jobs_) {
            cells_.append(job.id(), job.prompt().data() + job.prompt().size() - job.n_prompt_left(), job.n_planned());
        }
    } catch (...) {
        fail_all(on_answer);
        return;
    }
    bool is_finite = true;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        const auto next = std::next(job);
        try {
            job->take([this](const WantedRow & row, const Task & task) { return logits_of(row, task); },
                      [this](std::size_t row) { return state_of(row); });
            if (job->is_done()) {
                answer(job, on_answer);
            }
        } catch (const NotFinite &) {
            is_finite = false;
            if (is_apart_) {
                on_answer(job->ticket(), failure());
                jobs_.erase(job);
            }
        } catch (...) {
            on_answer(job->ticket(), failure());
            end(job);
        }
        job = next;
    }
    if (!is_finite) {
        set_apart(on_answer);
    }
}

// All under way.
void Scheduler::set_apart(const OnAnswer & on_answer) noexcept {
    try {
        for (Job & job : jobs_) {
            const auto at = apart_.emplace(job.ticket(), job.take_request()).first;
            at->second.text.on_token = nullptr;
        }
    } catch (...) {
        apart_.clear();
        fail_all(on_answer);
        return;
    }
    jobs_.clear();
    clear_cache();
}

// Of what is decided; it ends.
void Scheduler::answer(Jobs::iterator job, const OnAnswer & on_answer) noexcept {
    Answer made;
    try {
        made = job->answer();
        job->keep(cells_);
    } catch (...) {
        made = failure();
    }
    on_answer(job->ticket(), std::move(made));
    end(job);
}

// First what is nearest to its answer.
void Scheduler::plan(BatchRows & rows, const OnAnswer & on_answer) {
    for (Job & job : jobs_) {
        if (job.needs_cells() && rows.fits(true)) {
            place_rows(job, rows);
        }
        if (job.n_prompt_left() == 0) {
            job.plan(rows, 0);
        }
    }
    if (n_chunk_ > 0) {
        plan_by_chunks(rows, on_answer);
        return;
    }
    // A long prompt leaves rows to others, as long as there are any.
    const std::size_t part = std::max<std::size_t>(n_batch_ / 2, 1);
    for (Job & job : jobs_) {
        job.plan(rows, part);
    }
    admit(rows, part, on_answer);
    for (Job & job : jobs_) {
        job.plan(rows, n_batch_);
    }
}

void Scheduler::place_rows(Job & job, BatchRows & rows) {
    lend_ids(job);
    // Of a large tree, no more cells than a pass or so takes; and where others may come, half of the logits left.
    const std::size_t max_cells = std::min(job.n_cells() + n_cells_left(), 2 * n_batch_);
    const std::size_t max_nodes = n_chunk_ == 0 ? rows.n_wanted_left() : (rows.n_wanted_left() + 1) / 2;
    job.place_rows(max_nodes, std::max(job.n_cells(), max_cells));
    for (llama_seq_id id = job.return_id(); id >= 0; id = job.return_id()) {
        empty_.push_back(id);
    }
}

void Scheduler::decode(BatchRows & rows) {
    const bool cut =
        rows.n_wanted() > 0 && std::all_of(jobs_.begin(), jobs_.end(), [](const Job & job) { return job.wants_few(); });
    const std::size_t n_rows = rows.size();
    if (!cut) {
        filler_.assign(empty_.end() - (empty_.empty() ? 0 : 1), empty_.end());
        rows.fill_up(filler_, filler_.empty() ? 0 : n_cells_left());
    }
    check_decoded(head_.decode(context_.get(), rows.batch(), cut));
    if (rows.size() > n_rows) {
        cells_.cut(filler_.front(), 0);
    }
}

// Without flash attention each row attends to all cells up to the last one in use. So what is retained goes when that
// has taken others about as long as to evaluate it anew would.
void Scheduler::drop_unused() noexcept {
    if (has_flash_attention_) {
        return;
    }
    const auto n_wanted = static_cast<double>(rows_.n_wanted());
    const double n_rows = n_wanted + (static_cast<double>(rows_.size()) - n_wanted) * kPromptAttention;
    n_rows_ += n_rows;
    const auto n_used = static_cast<double>(n_cells_max_ - n_cells_left());
    n_top_ = std::max(n_top_, n_used);
    n_idle_ += n_rows * (n_top_ - n_used);
    for (auto at = retained_.begin(); at != retained_.end();) {
        if (is_live(*at) || n_rows_ - used_[static_cast<std::size_t>(*at)] <= n_rows_anew_) {
            ++at;
        } else {
            release(*at);
            at = retained_.erase(at);
        }
    }
}

// All that is retained goes where it may lie after cells that nothing uses any more, and these have taken as long.
void Scheduler::drop_scattered() noexcept {
    const bool is_idle = jobs_.empty() && std::none_of(retained_.begin(), retained_.end(),
                                                       [this](llama_seq_id id) { return is_live(id); });
    if (is_idle && n_idle_ > n_rows_anew_ * static_cast<double>(cells_.n_cells())) {
        while (evict_one(-1, kLive)) {
        }
        n_top_ = n_idle_ = 0;
    }
}

const float * Scheduler::logits_of(const WantedRow & row, const Task & task) {
    if (head_.was_cut()) {
        few_logits_.resize(static_cast<std::size_t>(llama_vocab_n_tokens(vocab_)));
        head_.multiply(task.wanted(), llama_n_threads(context_.get()), few_logits_.data(), row.output);
        check_finite(few_logits_.data(), task.wanted(), few_logits_.size());
        return few_logits_.data();
    }
    const float * logits = llama_get_logits_ith(context_.get(), row.row);
    throw_if(logits == nullptr, Status::context, "the context gives no logits");
    check_finite(logits, {true, {}, {}}, static_cast<std::size_t>(llama_vocab_n_tokens(vocab_)));
    return logits;
}

std::vector<float> Scheduler::state_of(std::size_t row) {
    llama_synchronize(context_.get());
    std::vector<float> state = head_.hidden_state(rows_.output_of(row));
    check_finite(state);
    return state;
}

// By what is handled where this is called.
void Scheduler::fail_all(const OnAnswer & on_answer) noexcept {
    with_failure([&](Status status, const char * message) {
        for (const Job & job : jobs_) {
            on_answer(job.ticket(), failure(status, message));
        }
    });
    jobs_.clear();
    clear_cache();
}

void Scheduler::plan_by_chunks(BatchRows & rows, const OnAnswer & on_answer) {
    for (Job & job : jobs_) {
        if (!is_long(job.n_own())) {
            job.plan(rows, n_batch_);
        }
    }
    admit(rows, n_batch_, on_answer);
    const bool has_short =
        std::any_of(jobs_.begin(), jobs_.end(), [&](const Job & job) { return !is_long(job.n_own()); });
    n_quiet_ = has_short ? 0 : n_quiet_ + 1;
    const double chunk = n_quiet_ > kQuiet ? static_cast<double>(n_batch_) : kChunk * static_cast<double>(n_chunk_);
    plan_long(rows, rows.size() == 0 ? chunk : chunk * kBesideOthers);
}

// As many rows as take the time of so many after nothing: half for the one that came first, so that none is overtaken
// without end; the rest for what is soon done.
void Scheduler::plan_long(BatchRows & rows, double chunk) {
    std::vector<Job *> jobs;
    for (Job & job : jobs_) {
        if (job.n_prompt_left() > 0 && is_long(job.n_own())) {
            jobs.push_back(&job);
        }
    }
    if (jobs.empty()) {
        return;
    }
    const auto plan = [&](Job & job, double share) {
        const std::size_t n_before = job.n_planned();
        const auto at = static_cast<double>(job.prompt().size() - job.n_prompt_left() + n_before);
        const double each = 1 + at / depth_;
        job.plan(rows, n_before + static_cast<std::size_t>(std::ceil(std::max(share, 0.0) / each)));
        chunk -= each * static_cast<double>(job.n_planned() - n_before);
    };
    plan(*jobs.front(), chunk / 2);
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job * a, const Job * b) { return a->n_prompt_left() < b->n_prompt_left(); });
    for (Job * const job : jobs) {
        plan(*job, chunk);
    }
}

bool Scheduler::is_long(const std::vector<Token> & prompt) const {
    return is_long(prompt.size()) && is_long(prompt.size() - find_source(prompt).second);
}

// Whether so many cells may be taken: by a long prompt, as long as it leaves short ones what is reserved for them; and
// while such a one waits, by short ones of no others.
bool Scheduler::has_reserve(std::size_t n_needed, bool for_long, bool has_long_waiting) const noexcept {
    std::size_t n_short = 0;
    std::size_t n_long = 0;
    for (const Job & job : jobs_) {
        (is_long(job.n_own()) ? n_long : n_short) += job.n_own() + job.n_cells();
    }
    if (for_long) {
        return n_long + n_needed <= n_ctx_max_;
    }
    return !has_long_waiting || n_short + n_needed <= n_reserved_;
}

// Whether paths after its prompt would take the window before them out of the prompt's own id.
bool Scheduler::outgrows_window(const Request & request) const noexcept {
    return n_swa_ > 0 && !request.is_decoded() &&
           request.prompt.size() + request.max_tokens() >= static_cast<std::size_t>(n_swa_);
}

bool Scheduler::is_retained(llama_seq_id id) const noexcept {
    return std::find(retained_.begin(), retained_.end(), id) != retained_.end();
}

void Scheduler::count_shared(llama_seq_id source, llama_seq_id id, std::size_t n) noexcept {
    if (source < 0) {
        return;
    }
    used_[static_cast<std::size_t>(source)] = n_rows_;
    std::size_t & n_shared = n_shared_[static_cast<std::size_t>(source)];
    if (source == id) {
        n_shared = std::min(n_shared, n);
    }
    // After a text comes one request.
    if (n >= kMinShared && kept_[static_cast<std::size_t>(source)].end == 0) {
        n_shared = std::max(n_shared, n);
    }
    if (is_retained(source)) {
        cut_to_shared(source);
    }
}

// Of one that is retained, or about to be: with more after it, the window before what was shared would not stay.
void Scheduler::cut_to_shared(llama_seq_id id) noexcept {
    const std::size_t n = n_shared_[static_cast<std::size_t>(id)];
    if (n_swa_ > 0 && n > 0 && cells_.n_held(id) >= static_cast<std::size_t>(n_swa_) && cells_.has_window(id, n)) {
        cells_.cut(id, n);
    }
}

// Whether a prompt under way is about to evaluate much of this one.
bool Scheduler::is_worth_waiting(const std::vector<Token> & prompt) const {
    std::size_t n_soon = 0;
    for (const Job & job : jobs_) {
        if (job.n_prompt_left() > 0) {
            const std::size_t n = common_prefix(job.prompt(), prompt);
            n_soon = std::max(n_soon, cells_.n_held(job.id()) < n ? n : 0);
        }
    }
    return n_soon >= kMinShared && n_soon >= find_source(prompt).second + kMinShared;
}

// The id that holds most of a prompt, save its last token, after which the logits are needed; -1: none holds any.
std::pair<llama_seq_id, std::size_t> Scheduler::find_source(const std::vector<Token> & prompt) const {
    std::pair<llama_seq_id, std::size_t> best{-1, 0};
    const auto look_at = [&](llama_seq_id id) {
        const std::size_t n = std::min(cells_.n_common(id, prompt), prompt.size() - 1);
        if (n > best.second && cells_.has_window(id, n)) {
            best = {id, n};
        }
    };
    for (const llama_seq_id id : retained_) {
        look_at(id);
    }
    for (const Job & job : jobs_) {
        look_at(job.id());
    }
    return best;
}

}  // namespace token_trie
