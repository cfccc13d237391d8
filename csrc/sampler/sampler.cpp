#include "sampler/sampler.h"

#include "llama/library.h"
#include "llama/runs_in_graph.h"
#include "sampler/candidates.h"
#include "sampler/graph_part.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Context {
    Cursor cursor;
    Mode mode;
    // NOLINTNEXTLINE(readability-redundant-member-init): for callers that name only the first members
    std::shared_ptr<GraphPart> in_graph{};  // null without a tail
    token_trie_sampler_state counts{};
    bool warned = false;
};

Context & context(const llama_sampler * smpl) { return *static_cast<Context *>(smpl->ctx); }

// Candidates 0 .. n survive, whatever was selected.
void shrink(llama_token_data_array & candidates, std::size_t n) {
    candidates.size = n;
    if (candidates.selected >= static_cast<std::int64_t>(n)) {
        candidates.selected = -1;
    }
}

bool stands_at_own_index(const llama_token_data_array & candidates, Token token) {
    return static_cast<std::size_t>(token) < candidates.size && candidates.data[token].id == token;
}

// Swaps keep the array a permutation, and what was selected is followed to its new place.
void swap(llama_token_data_array & candidates, std::size_t a, std::size_t b) {
    std::swap(candidates.data[a], candidates.data[b]);
    const auto at_a = static_cast<std::int64_t>(a);
    const auto at_b = static_cast<std::int64_t>(b);
    if (candidates.selected == at_a) {
        candidates.selected = at_b;
    } else if (candidates.selected == at_b) {
        candidates.selected = at_a;
    }
}

// Brings the survivors to the front and returns their number, or SIZE_MAX and no change unless each allowed token
// is at its own index. Greedy: the best alone.
std::size_t gather(const AllowedSet & allowed, Mode mode, llama_token_data_array & candidates) {
    Token best = -1;
    float logit = kMinusInfinity;
    const bool in_place = allowed.for_each([&](Token token) {
        if (!stands_at_own_index(candidates, token)) {
            return false;
        }
        if (best < 0 || candidates.data[token].logit > logit) {
            best = token;
            logit = std::isnan(candidates.data[token].logit) ? kMinusInfinity : candidates.data[token].logit;
        }
        return true;
    });
    if (!in_place) {
        return SIZE_MAX;
    }
    if (mode == Mode::greedy) {
        swap(candidates, 0, static_cast<std::size_t>(best));
        return 1;
    }
    // Ascending order: the token for place n is at n or further on, where no earlier swap has been.
    std::size_t n = 0;
    allowed.for_each([&](Token token) { swap(candidates, n++, static_cast<std::size_t>(token)); });
    return n;
}

// Puts all but some to the front, for candidates of which each of these is at its own index; else SIZE_MAX and no
// change.
std::size_t drop(const TokenSpan & some, llama_token_data_array & candidates) {
    if (candidates.sorted ||
        !std::all_of(some.begin(), some.end(), [&](Token token) { return stands_at_own_index(candidates, token); })) {
        return SIZE_MAX;
    }
    // Descending order: what comes from the end in its place is none of them.
    std::size_t n = candidates.size;
    for (std::uint32_t i = some.size; i-- > 0;) {
        swap(candidates, static_cast<std::size_t>(some.data[i]), --n);
    }
    return n;
}

// The same for candidates in any order, by one pass over them: survivors keep theirs, the others' logits become -inf.
std::size_t partition(const AllowedSet & allowed, llama_token_data_array & candidates) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < candidates.size; ++i) {
        if (allowed.contains(candidates.data[i].id)) {
            swap(candidates, n++, i);
        } else {
            candidates.data[i].logit = kMinusInfinity;
        }
    }
    return n;
}

// Upstream samplers left nothing to choose from; every allowed token that fits gets an equal chance.
std::size_t restore(const AllowedSet & allowed, llama_token_data_array & candidates) {
    std::size_t n = 0;
    allowed.for_each([&](Token token) {
        candidates.data[n++] = {token, 0.0F, 0.0F};
        return n < candidates.size;
    });
    candidates.selected = -1;
    return n;
}

void sampler_accept(llama_sampler * smpl, llama_token token) {
    Context & ctx = context(smpl);
    bool accepted = false;
    const bool was_closed = ctx.cursor.is_closed();
    try {
        accepted = ctx.cursor.accept(token);
    } catch (const std::bad_alloc &) {
        ctx.cursor.escape();
        log_warning("token-trie: out of memory; what follows is unconstrained\n");
    }
    ctx.counts.n_escaped += accepted ? 0 : 1;
    if (!was_closed && ctx.cursor.is_closed()) {
        ++ctx.counts.n_closed;
        log_warning(kSpanClosed);
    }
}

void sampler_apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    Context & ctx = context(smpl);
    ++ctx.counts.n_applied;
    llama_token_data_array & candidates = *cur_p;
    const AllowedSet allowed = ctx.cursor.allowed();
    const bool is_free = allowed.everything;
    if (candidates.size == 0 || (is_free && allowed.except.empty())) {
        return;
    }
    std::size_t n = is_free ? drop(allowed.except, candidates) : gather(allowed, ctx.mode, candidates);
    if (n == SIZE_MAX) {
        n = partition(allowed, candidates);
    }
    if (n == 0 || !any_above_minus_infinity(candidates, n)) {
        n = restore(is_free ? ctx.cursor.next_of_marker() : allowed, candidates);
        candidates.sorted = true;
        ++ctx.counts.n_restored;
        if (!ctx.warned) {
            ctx.warned = true;
            log_warning(
                "token-trie: the samplers before it cut every allowed token away; they were put back with equal "
                "logits. Place token-trie before samplers that truncate.\n");
        }
    }
    if (ctx.mode == Mode::greedy && !is_free) {
        swap(candidates, 0, best_of(candidates, n));
        shrink(candidates, 1);
        candidates.selected = 0;
        candidates.sorted = true;
    } else {
        shrink(candidates, n);
    }
}

llama_sampler * sampler_clone(const llama_sampler * smpl);

template <typename Interface>
void run_in_graph(Interface & iface) {
    if constexpr (RunsInGraph<Interface>::value) {
        iface.backend_init = [](llama_sampler * smpl, ggml_backend_buffer_type_t buffers, std::uint32_t n_outputs) {
            const Context & ctx = context(smpl);
            return ctx.in_graph != nullptr && ctx.in_graph->init(ctx.cursor, ctx.mode, buffers, n_outputs);
        };
        iface.backend_apply = [](llama_sampler * smpl, ggml_context * graph, ggml_cgraph * /*gf*/, auto * data) {
            context(smpl).in_graph->apply(graph, {data->logits, data->probs, data->sampled, data->candidates});
        };
        iface.backend_set_input = [](llama_sampler * smpl) {
            Context & ctx = context(smpl);
            ++ctx.counts.n_in_graph;
            ctx.in_graph->set_input(ctx.cursor);
        };
        iface.backend_reset = [](llama_sampler * smpl) { context(smpl).in_graph->reset(); };
        iface.copy_state = [](const llama_sampler * from, llama_sampler * to) {
            context(to).cursor = context(from).cursor;
        };
    }
}

// The tail's context is its share in the part that its trie has, which is null in a clone.
using Tail = std::shared_ptr<GraphPart>;

void tail_apply(llama_sampler * /*smpl*/, llama_token_data_array * cur_p) {
    if (cur_p->selected < 0 && cur_p->size > 0) {
        cur_p->selected = static_cast<std::int64_t>(best_of(*cur_p, cur_p->size));
    }
}

template <typename Interface>
void run_tail_in_graph(Interface & iface) {
    if constexpr (RunsInGraph<Interface>::value) {
        iface.backend_init = [](llama_sampler * smpl, ggml_backend_buffer_type_t /*buffers*/,
                                std::uint32_t /*n_outputs*/) { return *static_cast<Tail *>(smpl->ctx) != nullptr; };
        iface.backend_apply = [](llama_sampler * smpl, ggml_context * graph, ggml_cgraph * /*gf*/, auto * data) {
            (*static_cast<Tail *>(smpl->ctx))
                ->apply_end(graph, {data->logits, data->probs, data->sampled, data->candidates});
        };
        iface.copy_state = [](const llama_sampler * /*from*/, llama_sampler * /*to*/) {};
    }
}

// A llama.cpp newer than the headers may look for callbacks past the end of this struct; it finds nulls there.
struct PaddedInterface {
    llama_sampler_i iface;
    void * later_callbacks[16];
};

bool is_same_llama() { return llama_compiled().empty() || llama_compiled() == llama_loaded(); }

PaddedInterface padded_interface = [] {
    PaddedInterface out{};
    out.iface.name = [](const llama_sampler * /*smpl*/) { return "token-trie"; };
    out.iface.accept = sampler_accept;
    out.iface.apply = sampler_apply;
    out.iface.reset = [](llama_sampler * smpl) { context(smpl).cursor.reset(); };
    out.iface.clone = sampler_clone;
    out.iface.free = [](llama_sampler * smpl) { delete static_cast<Context *>(smpl->ctx); };
    if (is_same_llama()) {
        run_in_graph(out.iface);
    }
    return out;
}();

llama_sampler * wrap_tail(Tail tail);

PaddedInterface padded_tail = [] {
    PaddedInterface out{};
    out.iface.name = [](const llama_sampler * /*smpl*/) { return "token-trie-tail"; };
    out.iface.apply = tail_apply;
    out.iface.clone = [](const llama_sampler * /*smpl*/) { return wrap_tail(nullptr); };
    out.iface.free = [](llama_sampler * smpl) { delete static_cast<Tail *>(smpl->ctx); };
    if (is_same_llama()) {
        run_tail_in_graph(out.iface);
    }
    return out;
}();

template <typename Owned>
llama_sampler * wrap(PaddedInterface & interface, Owned made) {
    auto owned = std::make_unique<Owned>(std::move(made));
    llama_sampler * smpl = llama_sampler_init(&interface.iface, owned.get());
    static_cast<void>(owned.release());
    return smpl;
}

llama_sampler * wrap_tail(Tail tail) { return wrap(padded_tail, std::move(tail)); }

llama_sampler * sampler_clone(const llama_sampler * smpl) {
    Context clone = context(smpl);
    clone.in_graph.reset();
    return wrap(padded_interface, std::move(clone));
}

void check_made_here(const llama_sampler * sampler) {
    throw_if(sampler == nullptr || sampler->iface != &padded_interface.iface, Status::argument,
             "sampler: not one that token-trie made (a chain is not; pass its member)");
}

}  // namespace

llama_sampler * make_sampler(Cursor cursor, Mode mode) {
    return wrap(padded_interface, Context{std::move(cursor), mode});
}

llama_sampler * make_tail(llama_sampler * sampler, std::int32_t n_vocab) {
    check_made_here(sampler);
    Context & ctx = context(sampler);
    throw_if(ctx.in_graph != nullptr, Status::argument, "sampler: it has a tail");
    auto part = std::make_shared<GraphPart>(n_vocab);
    llama_sampler * tail = wrap_tail(part);
    ctx.in_graph = std::move(part);
    return tail;
}

SamplerView view(const llama_sampler * sampler) {
    check_made_here(sampler);
    const Context & ctx = context(sampler);
    return {&ctx.cursor, ctx.counts};
}

}  // namespace token_trie
