#include "sampler/sampler.h"

#include "llama/library.h"
#include "sampler/candidates.h"

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

// A llama.cpp newer than the headers may look for callbacks past the end of this struct; it finds nulls there.
struct PaddedInterface {
    llama_sampler_i iface;
    void * later_callbacks[16];
};

PaddedInterface padded_interface = [] {
    PaddedInterface out{};
    out.iface.name = [](const llama_sampler * /*smpl*/) { return "token-trie"; };
    out.iface.accept = sampler_accept;
    out.iface.apply = sampler_apply;
    out.iface.reset = [](llama_sampler * smpl) { context(smpl).cursor.reset(); };
    out.iface.clone = sampler_clone;
    out.iface.free = [](llama_sampler * smpl) { delete static_cast<Context *>(smpl->ctx); };
    return out;
}();

llama_sampler * wrap(Context context) {
    auto owned = std::make_unique<Context>(std::move(context));
    llama_sampler * smpl = llama_sampler_init(&padded_interface.iface, owned.get());
    static_cast<void>(owned.release());
    return smpl;
}

llama_sampler * sampler_clone(const llama_sampler * smpl) { return wrap(context(smpl)); }

}  // namespace

llama_sampler * make_sampler(Cursor cursor, Mode mode) { return wrap({std::move(cursor), mode}); }

SamplerView view(const llama_sampler * sampler) {
    throw_if(sampler == nullptr || sampler->iface != &padded_interface.iface, Status::argument,
             "sampler: not one that token-trie made (a chain is not; pass its member)");
    const Context & ctx = context(sampler);
    return {&ctx.cursor, ctx.counts};
}

}  // namespace token_trie
