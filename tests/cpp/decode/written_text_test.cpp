#include "decode/text.h"

#include "llama/vocab.h"
#include "tiny_model.h"

namespace token_trie::test {
namespace {

class WrittenTextTest : public WithTinyModel {
   protected:
    static std::string text_of(const Tokens & tokens) { return detokenize(tiny_vocab(), tokens); }
};

TEST_F(WrittenTextTest, AStopStringIsFoundWhereAPlainSearchFindsItAndWhatStandsBeforeItIsKept) {
    std::mt19937 rng(11);
    const std::vector<Token> tokens = {kRead, kFile, kMail, kSend, bytes("A")[0], bytes("_")[0], bytes("E")[0]};
    for (int round = 0; round < 500; ++round) {
        std::vector<std::string> stops;
        for (std::size_t i = 0; i < 1 + rng() % 3; ++i) {
            std::string stop;
            for (const std::size_t n = 1 + rng() % 4; stop.size() < n;) {
                stop += "AE_DFIS"[rng() % 7];
            }
            stops.push_back(stop);
        }
        WrittenText written(stops);
        Tokens all;
        std::string text;
        bool is_found = false;
        while (!is_found && all.size() < 30) {
            all.push_back(tokens[rng() % tokens.size()]);
            text += text_of({all.back()});
            is_found = written.add(text_of({all.back()}), true);
            std::size_t first = std::string::npos;
            for (const std::string & stop : stops) {
                first = std::min(first, text.find(stop));
            }
            ASSERT_EQ(is_found, first != std::string::npos) << text;
            if (!is_found) {
                continue;
            }
            EXPECT_EQ(text.compare(first, stops[written.stop_string()].size(), stops[written.stop_string()]), 0);
            const WrittenText::End end = written.end(tiny_vocab(), 100);
            EXPECT_FALSE(end.is_cut);
            Tokens kept(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(end.n_kept));
            EXPECT_LE(text_of(kept).size(), first);
            kept.insert(kept.end(), end.rest.begin(), end.rest.end());
            EXPECT_EQ(text_of(kept), text.substr(0, first));
            const WrittenText::End cut = written.end(tiny_vocab(), end.n_kept);
            EXPECT_EQ(cut.is_cut, !end.rest.empty());
            EXPECT_TRUE(cut.rest.empty());
        }
    }
}

TEST_F(WrittenTextTest, AnEmptyStopStringIsRefused) {
    EXPECT_EQ(status_of([] { WrittenText({"a", ""}); }), Status::argument);
}

TEST_F(WrittenTextTest, WithoutStopStringsTheTextGoesOn) {
    WrittenText written({});
    EXPECT_FALSE(written.add("READ", true));
}

}  // namespace
}  // namespace token_trie::test
