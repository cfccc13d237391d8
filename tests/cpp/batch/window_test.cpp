#include "batch_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

// Sliding windows, behind prompts of several of them that begin alike: whatever was shared, cut back, forked, grown or
// taken over on the way, an answer is that of one pass over an empty cache. TOKEN_TRIE_WINDOW_ANSWERS=100000 is for a
// long run.
namespace token_trie::test {
namespace {

// Rows evaluated again beside others differ by less; a window that is not whole costs from tenths to nats.
constexpr double kRounding = 0.03;
constexpr std::uint32_t kContext = 512;

std::size_t n_answers() {
    const char * wanted = std::getenv("TOKEN_TRIE_WINDOW_ANSWERS");
    return wanted == nullptr ? rounds(250) : static_cast<std::size_t>(std::strtoull(wanted, nullptr, 10));
}

Tokens operator+(Tokens a, const Tokens & b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// Log-probabilities from one pass over an empty cache, in which nothing is ever dropped.
class OnePass {
   public:
    explicit OnePass(TinyKind kind) : context_(tiny_context(2048, kind, kPaths, 2048)) {}

    using Rows = std::vector<std::vector<double>>;  // after each token of a path, from the one before it on
    // The rows of paths behind the same tokens.
    std::vector<Rows> behind(const Tokens & tokens, const std::vector<Tokens> & paths) {
        llama_memory_clear(llama_get_memory(context_.get()), true);
        std::vector<llama_seq_id> all(paths.size());
        std::iota(all.begin(), all.end(), 0);
        llama_batch batch = llama_batch_init(2048, 0, kPaths);
        const auto add = [&](Token token, std::size_t position, const llama_seq_id * ids, std::size_t n_ids) {
            batch.token[batch.n_tokens] = token;
            batch.pos[batch.n_tokens] = static_cast<llama_pos>(position);
            batch.n_seq_id[batch.n_tokens] = static_cast<std::int32_t>(n_ids);
            std::copy(ids, ids + n_ids, batch.seq_id[batch.n_tokens]);
            batch.logits[batch.n_tokens++] = position + 1 >= tokens.size() ? 1 : 0;
        };
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            add(tokens[i], i, all.data(), all.size());
        }
        for (std::size_t path = 0; path < paths.size(); ++path) {
            for (std::size_t i = 0; i < paths[path].size(); ++i) {
                add(paths[path][i], tokens.size() + i, &all[path], 1);
            }
        }
        EXPECT_EQ(llama_decode(context_.get(), batch), 0);
        llama_batch_free(batch);
        std::vector<Rows> out;
        auto row = static_cast<std::int32_t>(tokens.size());
        for (const Tokens & path : paths) {
            out.push_back({logprobs(static_cast<std::int32_t>(tokens.size()) - 1)});
            for (std::size_t i = 0; i < path.size(); ++i) {
                out.back().push_back(logprobs(row++));
            }
        }
        return out;
    }
    std::vector<double> behind(const Tokens & tokens) { return behind(tokens, {Tokens()}).front().front(); }
    // The scores of whole members, in their order.
    std::vector<double> scores(const Tokens & tokens, const Trie & trie) {
        std::vector<Tokens> members;
        members.reserve(trie.n_leaves());
        for (LeafId leaf = 0; leaf < trie.n_leaves(); ++leaf) {
            members.push_back(trie.sequence(leaf));
        }
        const std::vector<Rows> rows = behind(tokens, members);
        std::vector<double> out(members.size());
        for (std::size_t leaf = 0; leaf < members.size(); ++leaf) {
            for (std::size_t i = 0; i < members[leaf].size(); ++i) {
                out[leaf] += rows[leaf][i][static_cast<std::size_t>(members[leaf][i])];
            }
        }
        return out;
    }

   private:
    static constexpr std::uint32_t kPaths = 32;

    std::vector<double> logprobs(std::int32_t row) {
        return log_probabilities(llama_get_logits_ith(context_.get(), row));
    }

    const Context context_;
};

// Texts of up to six windows, from few that begin alike.
class Texts {
   public:
    Texts(std::mt19937 & rng, std::size_t window) : rng_(rng), window_(window), salt_(static_cast<unsigned>(rng())) {}

    Tokens draw() {
        const std::size_t length = 1 + rng_() % (6 * window_);
        Tokens out;
        for (unsigned which = salt_; out.size() < length;) {
            which = which * 3 + static_cast<unsigned>(rng_() % 2);
            append_random(out, which, window_ / 2 + which % window_);
        }
        out.resize(length);
        append_random(out, static_cast<unsigned>(rng_()), 1 + rng_() % 12);
        return out;
    }
    std::set<Tokens> members() {
        const bool deep = rng_() % 4 == 0;
        std::set<Tokens> out =
            random_texts(rng_, 1 + rng_() % 8, deep ? 3 * window_ / 2 : 1 + rng_() % 4, deep ? 2 : 8);
        if (deep) {  // paths that part behind more than a window
            Tokens stem;
            append_random(stem, static_cast<unsigned>(rng_()), window_ / 2 + rng_() % window_);
            for (Token i = 0; i < 3; ++i) {
                Tokens member = stem;
                member.insert(member.begin() + static_cast<std::ptrdiff_t>(rng_() % stem.size()), kRead + i);
                out.insert(member + Tokens{kRead + i});
            }
        }
        return out;
    }

   private:
    static void append_random(Tokens & out, unsigned seed, std::size_t n) {
        std::mt19937 same(seed);
        for (std::size_t i = 0; i < n; ++i) {
            out.push_back(bytes("a").front() + static_cast<Token>(same() % 26));
        }
    }
    std::mt19937 & rng_;
    const std::size_t window_;
    const unsigned salt_;
};

class Windows : public ::testing::TestWithParam<TinyKind> {
   protected:
    static std::size_t window() { return tiny_window(GetParam()); }
    std::size_t below(std::size_t n) { return rng_() % n; }

    void expect_scores(const Tokens & behind, const Trie & trie, const std::vector<double> & scores) {
        const std::vector<double> wanted = plain_.scores(behind, trie);
        ASSERT_EQ(scores.size(), wanted.size());
        for (std::size_t leaf = 0; leaf < wanted.size(); ++leaf) {
            ASSERT_NEAR(scores[leaf], wanted[leaf], kRounding);
        }
    }
    void expect_best(const Tokens & behind, const Trie & trie, const Found & found) {
        const std::vector<double> scores = plain_.scores(behind, trie);
        const double best = *std::max_element(scores.begin(), scores.end());
        ASSERT_NEAR(found.logprob, best, kRounding);
        ASSERT_NEAR(scores.at(found.leaf), best, kRounding);
    }
    // Each token at least as probable as all others that the members allow; no members: as all others.
    void expect_greedy(const Tokens & behind, const Tokens & answer, const std::set<Tokens> & members) {
        const OnePass::Rows rows = plain_.behind(behind, {answer}).front();
        Tokens here;
        for (std::size_t i = 0; i < answer.size(); ++i) {
            std::set<Token> allowed;
            for (const Tokens & member : members) {
                if (member.size() >= i && std::equal(here.begin(), here.end(), member.begin())) {
                    allowed.insert(member.size() == i ? kTinyEnd : member[i]);
                }
            }
            for (Token other = 0; other < kTinyVocab; ++other) {
                if (members.empty() || allowed.count(other) > 0) {
                    ASSERT_GE(rows[i][static_cast<std::size_t>(answer[i])],
                              rows[i][static_cast<std::size_t>(other)] - kRounding);
                }
            }
            here.push_back(answer[i]);
        }
        ASSERT_TRUE(members.empty() || members.count(answer) > 0);
    }

    void expect_logits(Sequence & sequence, const Tokens & behind, bool step_by_step) {
        const float * logits = sequence.logits({true, {}, {}}, step_by_step, kNotCancelled);
        const std::vector<double> wanted = plain_.behind(behind);
        const auto best = static_cast<std::size_t>(std::max_element(logits, logits + kTinyVocab) - logits);
        ASSERT_NEAR(wanted[best], *std::max_element(wanted.begin(), wanted.end()), kRounding);
        for (std::size_t i = 0; i < kTinyVocab; ++i) {
            ASSERT_NEAR(logits[i] - logits[best], wanted[i] - wanted[best], kRounding);
        }
    }
    void expect_answers(Sequence & sequence, const Tokens & here, Texts & texts) {
        ASSERT_EQ(sequence.tokens(), here);
        if (here.empty()) {
            return;
        }
        const std::size_t what = below(6);
        if (what < 2) {
            expect_logits(sequence, here, below(4) == 0);
        } else if (what < 5) {
            const Cursor cursor = cursor_of(unnamed_trie_of(texts.members()));
            SearchOptions options;
            options.leaf_end = LeafEnd::any;
            options.prefix = below(4) == 0 ? texts.draw() : Tokens();
            const Tokens & behind = options.prefix.empty() ? here : options.prefix;
            if (below(2) == 0) {
                expect_scores(behind, cursor.trie(), score_all(sequence, cursor, options, kNotCancelled).logprobs);
            } else {
                expect_best(behind, cursor.trie(), found_by(search(sequence, cursor, options, kNotCancelled)).at(0));
            }
        }
    }

    // From a program's own context, which holds more than is taken.
    void import_prefix(Sequence & sequence, Tokens text) {
        llama_context_params params = tiny_context_params(kContext);
        params.swa_full = below(2) == 0;
        const Context from = tiny_context_of(params, GetParam());
        for (std::size_t i = 0; i < text.size(); i += 64) {
            const std::size_t n = std::min<std::size_t>(64, text.size() - i);
            ASSERT_EQ(llama_decode(from.get(), llama_batch_get_one(&text[i], static_cast<std::int32_t>(n))), 0);
        }
        text.resize(text.size() - std::min(text.size() - 1, below(window())));
        sequence.import_prefix(from.get(), 0, text);
    }

    std::mt19937 rng_{[] {
        const char * seed = std::getenv("TOKEN_TRIE_WINDOW_SEED");
        return seed == nullptr ? 9U : static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
    }()};
    CapturedLog quiet_;
    OnePass plain_{GetParam()};
};

TEST_P(Windows, RequestsOfABatchAreAnsweredAsByOnePass) {
    for (std::size_t n_done = 0; n_done < n_answers();) {
        Texts texts(rng_, window());
        const std::size_t n_ids = std::array<std::size_t, 5>{2, 3, 5, 16, 0}[below(5)];
        const std::uint32_t n_ctx = below(2) == 0 ? 16 * tiny_window(GetParam()) : kContext;
        const auto batch = std::make_shared<Batch>(maker_of(n_ctx, GetParam()), Scheduler::Options{n_ids, 0});
        for (int round = 0; round < 4; ++round) {
            std::map<Ticket, std::pair<Request, std::set<Tokens>>> asked;
            for (std::size_t n = 1 + below(12); n > 0; --n) {
                const std::set<Tokens> members = texts.members();
                Request each =
                    request(texts.draw(), members,
                            std::array{Query::Mode::greedy, Query::Mode::best, Query::Mode::scores}[below(3)]);
                each.search.leaf_end = LeafEnd::any;
                if (below(6) == 0) {
                    each = text_behind(each.prompt, 1 + below(2 * window()));
                }
                const Ticket ticket = submit(batch, each);
                asked.emplace(ticket, std::pair{each, members});
            }
            for (const auto & [ticket, answer] : take_all(*batch)) {
                const auto & [each, members] = asked.at(ticket);
                SCOPED_TRACE(std::to_string(n_done++) + ": " + std::to_string(n_ids) + " ids, " +
                             std::to_string(each.prompt.size()) + " tokens, " + std::to_string(answer.info.n_shared) +
                             " shared, way " + std::to_string(static_cast<int>(each.mode)));
                ASSERT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
                switch (each.mode) {
                    case Query::Mode::scores: expect_scores(each.prompt, each.cursor->trie(), answer.logprobs); break;
                    case Query::Mode::best:
                        expect_best(each.prompt, each.cursor->trie(), found_by(answer).at(0));
                        break;
                    case Query::Mode::text: expect_greedy(each.prompt, answer.tokens, {}); break;
                    default: expect_greedy(each.prompt, answer.tokens, members);
                }
                if (HasFatalFailure()) {
                    return;
                }
            }
        }
    }
}

TEST_P(Windows, BranchesOfASequenceAreThoseOfOnePass) {
    std::size_t n_without_room = 0;
    for (std::size_t n_done = 0; n_done < n_answers();) {
        Texts texts(rng_, window());
        const std::uint32_t n_ctx = std::array{kContext / 2, kContext, 1024U}[below(3)];
        const std::uint32_t n_ids = std::array{1U, 2U, 8U, 64U}[below(4)];
        Sequence sequence(maker_of(n_ctx, GetParam(), n_ids));
        std::map<Sequence::Branch, Tokens> branches = {{sequence.branch(), {}}};
        std::string done;
        for (int step = 0; step < 30; ++step) {
            Tokens & here = branches.at(sequence.branch());
            const std::size_t what = here.empty() ? 0 : below(10);
            done += std::to_string(what) + " ";
            SCOPED_TRACE(std::to_string(n_done) + ": " + std::to_string(n_ctx) + " tokens, " + std::to_string(n_ids) +
                         " ids, " + std::to_string(branches.size()) + " branches, did " + done);
            try {
                if (what == 0) {
                    const Tokens text = texts.draw();
                    sequence.replace(text, kNotCancelled);
                    here = text;
                } else if (what == 1) {
                    const std::size_t n = 1 + below(here.size());
                    sequence.cut(n);
                    here.resize(n);
                } else if (what == 2 && branches.size() < 4) {
                    const Tokens copy = here;
                    branches[sequence.fork()] = copy;
                } else if (what == 3 && branches.size() > 1) {
                    const Sequence::Branch gone = sequence.branch();
                    branches.erase(gone);
                    sequence.drop(gone);
                    sequence.switch_to(branches.begin()->first);
                } else if (what == 4) {
                    const auto next = std::next(branches.begin(), static_cast<std::ptrdiff_t>(below(branches.size())));
                    sequence.switch_to(next->first);
                } else if (what == 5) {
                    import_prefix(sequence, texts.draw());
                } else {
                    const Tokens text = texts.draw();
                    for (std::size_t i = 0; i < std::min(text.size(), 1 + below(2 * window())); ++i) {
                        if (here.size() < 7 * window()) {
                            sequence.append(text[i]);
                            here.push_back(text[i]);
                        }
                    }
                }
                expect_answers(sequence, branches.at(sequence.branch()), texts);
                ++n_done;
            } catch (const Error & error) {
                ASSERT_EQ(error.status(), Status::context) << error.what();
                const std::string message = error.what();
                ASSERT_TRUE(message.find("full") != message.npos || message.find("fit") != message.npos ||
                            message.find("from:") != message.npos)
                    << message;
                ASSERT_LT(++n_without_room, n_done / 4 + 30);
            }
            if (HasFatalFailure()) {
                return;
            }
        }
    }
}

Tokens text_of(std::size_t n) {
    Tokens out;
    for (std::size_t i = 0; i < n; ++i) {
        out.push_back(bytes("a").front() + static_cast<Token>(i * i % 23));
    }
    return out;
}

TEST_P(Windows, AreNotTakenForWholeWhereABranchRestsWhileTheContextGrows) {
    Sequence sequence(maker_of(1024, GetParam()));
    const Tokens prompt = text_of(3 * window());
    sequence.replace(prompt, kNotCancelled);
    const Sequence::Branch resting = sequence.fork();
    for (const std::size_t n : {100U, 400U}) {
        sequence.replace(prompt + text_of(n), kNotCancelled);
    }
    ASSERT_GT(sequence.n_ctx(), 400U);
    sequence.switch_to(resting);
    sequence.append(kRead);
    expect_logits(sequence, prompt + Tokens{kRead}, false);
}

TEST_P(Windows, AreCutBackWhereACopyHasNoRoomBesideABranchThatRests) {
    Sequence sequence(maker_of(kContext, GetParam(), 2));
    const Tokens shared = text_of(172);
    sequence.replace(shared, kNotCancelled);
    sequence.fork();
    const Tokens prompt = shared + text_of(180);
    sequence.replace(prompt, kNotCancelled);
    const std::set<Tokens> members = {Tokens{kRead} + text_of(60), Tokens{kRead + 1} + text_of(60)};
    const Cursor cursor = cursor_of(unnamed_trie_of(members));
    SearchOptions options;
    options.leaf_end = LeafEnd::any;
    expect_scores(prompt, cursor.trie(), score_all(sequence, cursor, options, kNotCancelled).logprobs);
    expect_logits(sequence, prompt, false);
}

INSTANTIATE_TEST_SUITE_P(Of,
                         Windows,
                         ::testing::Values(TinyKind::window_of_16, TinyKind::window_of_32),
                         [](const auto & info) { return info.param == TinyKind::window_of_16 ? "16" : "32"; });

}  // namespace
}  // namespace token_trie::test
