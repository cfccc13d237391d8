#include "llama/model.h"

#include "tiny_model.h"

namespace token_trie::test {
namespace {

class ModelTest : public WithTinyModel {};

TEST_F(ModelTest, SaysWhatItsFileSays) {
    EXPECT_EQ(metadata(tiny_model(), "general.architecture"), "llama");
    EXPECT_EQ(of_architecture(tiny_model(), ".block_count"), "2");
    EXPECT_EQ(metadata(tiny_model(), "general.nothing"), "");
}

TEST_F(ModelTest, ADecoderWithATokenizerIsTaken) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::sliding_window, TinyKind::recurrent, TinyKind::hybrid}) {
        EXPECT_NO_THROW(check_model(tiny_model(kind)));
    }
}

TEST_F(ModelTest, AnotherIsRefusedByItsArchitecture) {
    EXPECT_EQ(message_of([] { check_model(tiny_model(TinyKind::diffusion)); }),
              "model: dream, a diffusion model, which writes all tokens at once; take a model that writes one token "
              "after another");
    EXPECT_EQ(message_of([] { check_model(tiny_model(TinyKind::no_tokenizer)); }), "model: it has no tokenizer");
}

}  // namespace
}  // namespace token_trie::test
