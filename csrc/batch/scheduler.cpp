#include "batch/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace token_trie {
namespace {

std::size_t checked_ids(const ContextMaker & maker, std::size_t wanted) {
    const std::size_t n_each = has_states(maker.model()) ? 2 : 1;  // the prompt's and what goes on from it
    const std::size_t n = wanted == 0 ? maker.max_ids() : std::min(wanted * n_each, maker.max_ids());
    throw_if(n < 2, Status::argument,
             "the context holds one sequence alone: n_parallel is 1, or the context is too small");
    return n;
}

// Attention is then as much work as the weights, of which it makes half as good use.
double depth_of(const llama_model * model) {
    const double n_multiplied = 4.0 * llama_model_n_embd(model) * llama_model_n_layer(model);
    return std::max(static_cast<double>(llama_model_n_params(model)) / std::max(n_multiplied, 1.0), 1.0);
}

// A prompt goes when attention to its cells has taken as long as it takes to evaluate them again.
double max_unused(const ContextMaker & maker, double depth) {
    return maker.may_use_flash_attention() ? std::numeric_limits<double>::infinity()
                                           : std::max(depth * Policy::kPromptRow, Policy::kMinUnused);
}

// Tokens that two prompts begin with alike, and go on from.
std::size_t n_alike(const std::vector<Token> & a, const std::vector<Token> & b) {
    return std::min({common_prefix(a, b), a.size() - 1, b.size() - 1});
}

}  // namespace

Scheduler::Scheduler(ContextMaker maker, const Options & options, OnAnswer on_answer)
    : on_answer_(std::move(on_answer)),
      n_ids_(checked_ids(maker, options.n_ids)),
      depth_(depth_of(maker.model())),
      max_unused_(max_unused(maker, depth_)),
      n_cells_max_(maker.max_tokens()),
      context_(std::move(maker), options.n_first == 0 ? n_cells_max_ : options.n_first, n_ids_),
      model_(context_.model()),
      vocab_(context_.vocab()),
      takes_one_at_a_time_(context_.takes_one_at_a_time()),
      n_batch_(std::min<std::size_t>(options.n_batch == 0 ? Policy::kRows : options.n_batch,
                                     llama_n_ubatch(context_.get()))),
      policy_(Policy::of(n_batch_, options.n_chunk)),
      n_ctx_max_(n_cells_max_ - n_cells_max_ / policy_.reserved_part),
      n_paths_(std::max<std::size_t>(std::min(context_.n_ids_max(), n_frugal_ids(vocab_)), 2) - 1),
      cache_(context_.memory(), model_, n_ids_, n_cells_max_, max_unused_) {}

void Scheduler::add(Requests & requests) noexcept {
    while (!requests.empty()) {
        Requests::node_type each = requests.extract(requests.begin());
        const bool continues = cache_.await(each.key(), each.mapped().prompt);
        (continues ? continuations_ : waiting_).insert(std::move(each));
    }
}

void Scheduler::cancel(Ticket ticket) noexcept {
    cache_.stop_awaiting(ticket);
    if (waiting_.erase(ticket) + continuations_.erase(ticket) + quarantined_.erase(ticket) == 0) {
        const auto job =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const Job & each) { return each.ticket() == ticket; });
        if (job == jobs_.end()) {
            return;
        }
        end(job);
    }
    on_answer_(ticket, failure(Status::cancelled, "cancelled"));
}

void Scheduler::pass() noexcept {
    try {
        rows_.clear(n_batch_, n_ids_);
        cache_.begin_pass(!jobs_.empty());
        plan();
        if (rows_.size() == 0) {
            return;
        }
        decode();
        cache_.end_pass(rows_, n_cells_max_ - n_cells_left());
        for (const Job & job : jobs_) {
            cache_.cells().append(job.id(), job.prompt().data() + job.prompt().size() - job.n_prompt_left(),
                                  job.n_planned());
        }
    } catch (...) {
        fail_all();
        return;
    }
    take_answers();
}

void Scheduler::plan() {
    go_on_from_stops();
    for (Job & job : jobs_) {
        if (job.needs_cells() && rows_.fits(true)) {
            place_rows(job);
        }
        if (job.n_prompt_left() == 0) {
            job.plan(rows_, 0);
        }
    }
    plan_prompts(policy_.n_first_rows);
    admit();
    plan_prompts(n_batch_);
    plan_long();
}

// Keeps what others begin with.
void Scheduler::go_on_from_stops() {
    for (Job & job : jobs_) {
        if (job.has_stopped()) {
            cache_.keep_copy(job.id(), job.go_on().is_shared);
        }
    }
}

// Adds rows of the short prompts.
void Scheduler::plan_prompts(std::size_t max_rows) {
    for (Job & job : jobs_) {
        if (!is_long(job)) {
            job.plan(rows_, max_rows);
        }
    }
}

// A chunk is an amount of work: the further back a prompt reaches, the fewer rows that are.
void Scheduler::plan_long() {
    std::vector<Job *> jobs;
    for (Job & job : jobs_) {
        if (job.n_prompt_left() > 0 && is_long(job)) {
            jobs.push_back(&job);
        }
    }
    const bool has_short = std::any_of(jobs_.begin(), jobs_.end(), [this](const Job & job) { return !is_long(job); });
    n_quiet_ = has_short ? 0 : n_quiet_ + 1;
    if (jobs.empty()) {
        return;
    }
    double chunk = n_quiet_ > Policy::kQuietPasses ? static_cast<double>(n_batch_)
                                                   : Policy::kChunk * static_cast<double>(policy_.max_short);
    chunk *= rows_.size() == 0 ? 1 : Policy::kBesideOthers;
    const auto plan = [&](Job & job, double share) {
        const std::size_t n_before = job.n_planned();
        const auto at = static_cast<double>(job.prompt().size() - job.n_prompt_left() + n_before);
        const double each = 1 + at / depth_;
        job.plan(rows_, n_before + static_cast<std::size_t>(std::ceil(std::max(share, 0.0) / each)));
        chunk -= each * static_cast<double>(job.n_planned() - n_before);
    };
    plan(*jobs.front(), chunk / 2);
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job * a, const Job * b) { return a->n_prompt_left() < b->n_prompt_left(); });
    for (Job * const job : jobs) {
        plan(*job, chunk);
    }
}

void Scheduler::place_rows(Job & job) {
    for (std::size_t n = job.n_ids_wanted(); n > 0; --n) {
        const bool has_right = job.lent().size() + 1 < n_ids_for(job.request());
        const bool has_spare = cache_.free_ids().size() > n_ids_ / Policy::kSpareIds;
        const llama_seq_id id = has_right || has_spare ? cache_.take(Eviction::text) : -1;
        if (id < 0) {
            break;
        }
        job.lend(id);
    }
    std::size_t max_cells = 0;
    if (!job.request().is_decoded()) {
        max_cells = std::min(job.n_cells() + n_cells_left(), Policy::kMaxTreePasses * n_batch_);
        if (!cache_.cells().has_states()) {
            max_cells = std::min<std::size_t>(max_cells, job.request().cursor->trie().n_nodes());
        }
    }
    const std::size_t n_others = n_taken() - job.n_cells();
    if (!grow(n_others + std::max(job.n_cells(), max_cells))) {
        max_cells = context_.n_ctx() - n_others;
    }
    const std::size_t max_nodes = (rows_.n_wanted_left() + policy_.tree_part - 1) / policy_.tree_part;
    job.place_rows(max_nodes, std::max(job.n_cells(), max_cells));
    for (llama_seq_id id = job.return_id(); id >= 0; id = job.return_id()) {
        cache_.give_back(id);
    }
}

void Scheduler::decode() {
    const bool cut = rows_.n_wanted() > 0 &&
                     std::all_of(jobs_.begin(), jobs_.end(), [](const Job & job) { return job.wants_few(); });
    if (cache_.cells().has_states()) {
        for (const std::vector<std::size_t> & rows :
             rows_.parts(takes_one_at_a_time_, llama_model_is_recurrent(model_))) {
            const BatchRows::Indices indices = part_.take(rows_, rows);
            if (!cut) {
                part_.fill_up(filler_, 0);
            }
            decode(part_, cut, indices);
        }
        return;
    }
    const std::size_t n_rows = rows_.size();
    BatchRows::Indices indices(n_rows);
    std::iota(indices.begin(), indices.end(), 0);
    if (!cut) {
        const std::vector<llama_seq_id> & free = cache_.free_ids();
        filler_.assign(free.end() - (free.empty() ? 0 : 1), free.end());
        rows_.fill_up(filler_, filler_.empty() ? 0 : context_.n_ctx() - std::min(context_.n_ctx(), n_taken()));
    }
    decode(rows_, cut, indices);
    if (rows_.size() > n_rows) {
        cache_.cells().cut(filler_.front(), 0);
    }
}

// In one pass of llama.cpp's, of whose logits the jobs observe theirs.
void Scheduler::decode(BatchRows & part, bool cut, const BatchRows::Indices & indices) {
    check_decoded(context_.head().decode(context_.get(), part.batch(), cut && part.n_wanted() > 0));
    for (Job & job : jobs_) {
        job.observe(
            indices, [&](std::size_t row, const Task & task) { return logits_of(part, row, task); },
            [&](std::size_t row) { return state_of(part, row); });
    }
}

void Scheduler::take_answers() noexcept {
    bool is_finite = true;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        const auto next = std::next(job);
        try {
            job->advance();
            if (job->is_done()) {
                answer(job);
            }
        } catch (const NotFinite &) {
            is_finite = false;
            if (is_quarantined_) {
                on_answer_(job->ticket(), failure());
                jobs_.erase(job);
            }
        } catch (...) {
            on_answer_(job->ticket(), failure());
            end(job);
        }
        job = next;
    }
    if (!is_finite) {
        quarantine();
    }
}

void Scheduler::answer(Jobs::iterator job) noexcept {
    Answer made;
    try {
        made = job->answer();
        job->keep(cache_.cells());
    } catch (...) {
        made = failure();
    }
    on_answer_(job->ticket(), std::move(made));
    end(job);
}

void Scheduler::end(Jobs::iterator job) noexcept {
    job->clear_cache(cache_.cells());
    const llama_seq_id id = job->id();
    const llama_seq_id kept_id = job->kept_id();
    for (const llama_seq_id each : job->lent()) {
        if (each != kept_id) {
            cache_.give_back(each);
        }
    }
    const Continuation continuation = job->continuation();
    jobs_.erase(job);
    if (id != kept_id) {
        cache_.retain(id, {});
    }
    cache_.retain(kept_id, continuation);
}

// Answers with the exception that is being handled.
void Scheduler::fail_all() noexcept {
    with_failure([&](Status status, const char * message) {
        for (const Job & job : jobs_) {
            on_answer_(job.ticket(), failure(status, message));
        }
    });
    jobs_.clear();
    cache_.clear();
}

void Scheduler::quarantine() noexcept {
    try {
        for (Job & job : jobs_) {
            const auto at = quarantined_.emplace(job.ticket(), job.take_request()).first;
            at->second.text.on_token = nullptr;
        }
    } catch (...) {
        quarantined_.clear();
        fail_all();
        return;
    }
    jobs_.clear();
    cache_.clear();
}

void Scheduler::admit() {
    has_long_waiting_ = false;
    is_quarantined_ = is_quarantined_ && !jobs_.empty();
    if (is_quarantined_ || !quarantined_.empty()) {
        admit_quarantined();
        return;
    }
    const auto is_due = [this] { return n_overtaken_ >= policy_.max_overtaken; };
    if (is_due() && rows_.fits(true) && !oldest().empty() && !admit_one(oldest(), oldest().begin())) {
        return;
    }
    std::size_t n_left = Policy::kLookAhead * n_ids_;
    for (Requests * const from : {&continuations_, &waiting_}) {
        for (auto next = from->begin(); next != from->end() && n_left > 0 && rows_.fits(true) && !is_due(); --n_left) {
            const auto at = next++;
            const bool waits = from == &waiting_ && at->second.goes_on && !has_room_to_go_on();
            if (!waits && !is_worth_waiting(at->second.prompt) && !admit_one(*from, at)) {
                return;
            }
        }
    }
}

void Scheduler::admit_quarantined() {
    if (!jobs_.empty()) {
        return;
    }
    cache_.clear();
    if (const auto at = quarantined_.begin(); try_begin(*at, Eviction::fresh)) {
        quarantined_.erase(at);
        is_quarantined_ = true;
    }
}

// Returns whether requests after it may be admitted too.
bool Scheduler::admit_one(Requests & from, Requests::iterator at) {
    const bool is_oldest = at->first == oldest().begin()->first;
    const bool is_long = this->is_long(at->second.prompt);
    const bool has_waited = n_overtaken_ >= policy_.max_overtaken || (&from == &continuations_ && jobs_.empty());
    if ((is_long && has_long_waiting_) || !try_begin(*at, has_waited ? Eviction::live : Eviction::shared)) {
        has_long_waiting_ = has_long_waiting_ || is_long;
        return is_long;
    }
    n_overtaken_ = is_oldest ? 0 : n_overtaken_ + 1;
    cache_.stop_awaiting(at->first);
    from.erase(at);
    if (!jobs_.empty() && !this->is_long(jobs_.back())) {
        jobs_.back().plan(rows_, policy_.n_first_rows);
    }
    return true;
}

// False where it has to wait for others to end. A failure is its answer.
bool Scheduler::try_begin(Requests::value_type & waiting, Eviction max) {
    try {
        return begin(waiting.first, waiting.second, max);
    } catch (...) {
        if (!cache_.cells().has_count()) {
            throw;
        }
        on_answer_(waiting.first, failure());
        cache_.reclaim([this](llama_seq_id id) {
            return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job & job) { return job.has(id); });
        });
        return true;
    }
}

// Throws with ids taken, which are to be reclaimed.
bool Scheduler::begin(Ticket ticket, Request & request, Eviction max) {
    const PrefixCache::Source source = cache_.find_source(request.prompt);
    const std::size_t n_own = request.prompt.size() - source.n;
    const std::size_t n_needed = n_own + request.max_tokens();
    const std::size_t n_cells = n_needed + n_promised();
    if (!leaves_ids(request) || !respects_reserve(n_needed, n_own > policy_.max_short) ||
        !find_cells(n_cells, max, source.id)) {
        return false;
    }
    const bool needs_path_id = n_ids_for(request) > 1;
    const llama_seq_id path_id = needs_path_id ? cache_.take(max, source.id) : -1;
    const llama_seq_id id = needs_path_id && path_id < 0 ? -1 : cache_.take_with(source, n_cells, max, !jobs_.empty());
    if (id < 0) {
        if (path_id >= 0) {
            cache_.give_back(path_id);
        }
        return false;
    }
    const Task::Origin origin{model_, context_.memory(), id, request.prompt.size()};
    jobs_.emplace_back(ticket, std::move(request), vocab_, origin, path_id, source.n, n_paths_);
    if (jobs_.back().is_done()) {
        answer(std::prev(jobs_.end()));
    } else if (cache_.cells().has_states()) {
        stop_where_others_part(jobs_.back());
    }
    return true;
}

// Stops a prompt where those that wait part from it, where earlier ones have, and a while before the last of these
// places or the end: so that a prompt which parts from it in the last part has most of it.
void Scheduler::stop_where_others_part(Job & job) {
    const std::vector<Token> & prompt = job.prompt();
    job.stop_at(cache_.n_known(prompt));
    std::size_t n_left = Policy::kLookAhead * n_ids_;
    for (const Requests * const from : {&continuations_, &waiting_}) {
        for (auto at = from->begin(); at != from->end() && n_left > 0; ++at, --n_left) {
            if (at->first != job.ticket()) {
                job.stop_at(n_alike(prompt, at->second.prompt));
            }
        }
    }
    const bool has_stop = job.last_stop() > job.n_shared();
    const std::size_t end = has_stop ? job.last_stop() : prompt.size();
    if (end - job.n_shared() >= Policy::kLongPart) {
        job.stop_at(end - Policy::kTail, /* is_shared = */ false);
    }
}

// The queue with the request that waits longest; an empty one where none waits.
Scheduler::Requests & Scheduler::oldest() noexcept {
    const bool is_continuation =
        waiting_.empty() || (!continuations_.empty() && continuations_.begin()->first < waiting_.begin()->first);
    return is_continuation ? continuations_ : waiting_;
}

// Whether a prompt that will be continued may begin: its cells stay until then, and others need theirs beside it.
bool Scheduler::has_room_to_go_on() noexcept {
    const auto n_going_on = std::count_if(jobs_.begin(), jobs_.end(), [](const Job & job) { return job.goes_on(); });
    const std::size_t n_live = cache_.n_live() + static_cast<std::size_t>(n_going_on);
    if (n_live == 0) {
        return true;
    }
    if (!continuations_.empty() || n_live + std::max<std::size_t>(n_ids_ / Policy::kSpareIds, 1) >= n_ids_) {
        return false;
    }
    return cache_.make_room(n_cells_max_ / Policy::kSpareCells + n_promised(), Eviction::fresh);
}

// Whether a prompt under way is about to evaluate much of this one.
bool Scheduler::is_worth_waiting(const std::vector<Token> & prompt) {
    const std::size_t n_min = cache_.find_source(prompt).n + Policy::kMinShared;
    return std::any_of(jobs_.begin(), jobs_.end(), [&](Job & job) {
        const std::size_t n = n_alike(job.prompt(), prompt);
        const bool is_ahead = n >= n_min && cache_.cells().n_held(job.id()) < n && job.n_prompt_left() > 0;
        return is_ahead && (!cache_.cells().has_states() || job.stop_at(n) >= n_min);
    });
}

bool Scheduler::is_long(const std::vector<Token> & prompt) const {
    return prompt.size() > policy_.max_short && prompt.size() - cache_.find_source(prompt).n > policy_.max_short;
}

// Whether so many cells may be taken: by a long prompt, if the reserve for short prompts stays; by a short one, while a
// long one waits, if all short ones fit the reserve.
bool Scheduler::respects_reserve(std::size_t n_needed, bool for_long) const noexcept {
    std::size_t n_short = 0;
    std::size_t n_long = 0;
    for (const Job & job : jobs_) {
        (is_long(job) ? n_long : n_short) += job.n_own() + job.n_cells();
    }
    return for_long ? n_long + n_needed <= n_ctx_max_
                    : !has_long_waiting_ || n_short + n_needed <= n_cells_max_ - n_ctx_max_;
}

// Whether paths after its prompt would take the window before them out of the prompt's own id.
bool Scheduler::outgrows_window(const Request & request) const noexcept {
    const auto n_swa = static_cast<std::size_t>(llama_model_n_swa(model_));
    return n_swa > 0 && !request.is_decoded() && request.prompt.size() + request.max_tokens() >= n_swa;
}

// Ids that a request has a right to: with states, it goes on from its prompt in others.
std::size_t Scheduler::n_ids_for(const Request & request) const noexcept {
    if (!cache_.cells().has_states()) {
        return outgrows_window(request) ? 2 : 1;
    }
    return 1 + (request.is_decoded() ? 1 : std::min<std::size_t>(request.cursor->trie().n_leaves(), Policy::kMinPaths));
}

// Whether it has as many with states, beside the jobs under way and the prompts that are kept.
bool Scheduler::leaves_ids(const Request & request) const noexcept {
    std::size_t n = n_ids_for(request);
    for (const Job & job : jobs_) {
        n += n_ids_for(job.request());
    }
    return !cache_.cells().has_states() || jobs_.empty() || n <= n_ids_ - n_ids_ / Policy::kRetainedIds;
}

// Cells that jobs have a right to, beside those that ids hold.
std::size_t Scheduler::n_promised() const noexcept {
    std::size_t n = 0;
    for (const Job & job : jobs_) {
        n += job.n_prompt_left() + job.n_cells();
    }
    return n;
}

// Whether there are so many free cells, once others are evicted, or the source of a prompt is cut. Where there is no
// memory for a larger context, those of the present one are all. Throws Error (memory) where nothing will free more.
bool Scheduler::find_cells(std::size_t n, Eviction max, llama_seq_id source) {
    if (!cache_.make_room(n, max, source) && !cache_.is_retained(source)) {
        return false;
    }
    const auto n_all = [&] { return std::min(cache_.cells().n_cells() + n, n_cells_max_); };
    bool is_there = grow(n_all());
    while (!is_there && cache_.evict(max, source)) {
        is_there = n_all() <= context_.n_ctx();
    }
    throw_if(!is_there && jobs_.empty() && cache_.n_live() == 0, Status::memory, "no context of ", n_all(),
             " tokens could be made");
    return is_there;
}

// False where there is no memory for so many cells.
bool Scheduler::grow(std::size_t n_cells) {
    try {
        context_.grow(n_cells, n_ids_);
        return true;
    } catch (const Error & error) {
        if (error.status() != Status::memory) {
            throw;
        }
        return false;
    }
}

std::size_t Scheduler::n_cells_left() const noexcept {
    return cache_.n_free_cells() - std::min(cache_.n_free_cells(), n_promised());
}

const float * Scheduler::logits_of(const BatchRows & part, std::size_t row, const Task & task) {
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(vocab_));
    if (context_.head().was_cut()) {
        few_logits_.resize(n_vocab);
        context_.head().multiply(task.wanted(), llama_n_threads(context_.get()), few_logits_.data(),
                                 part.output_of(row));
        check_finite(few_logits_.data(), task.wanted(), n_vocab);
        return few_logits_.data();
    }
    const float * logits = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(row));
    throw_if(logits == nullptr, Status::context, "the context gives no logits");
    check_finite(logits, {true, {}, {}}, n_vocab);
    return logits;
}

std::vector<float> Scheduler::state_of(const BatchRows & part, std::size_t row) {
    llama_synchronize(context_.get());
    std::vector<float> state = context_.head().hidden_state(part.output_of(row));
    check_finite(state);
    return state;
}

}  // namespace token_trie
