#include "trie/listed_children.h"

namespace token_trie {

ListedChildren::~ListedChildren() {
    for (const std::atomic<Listed *> & bucket : buckets_) {
        for (const Listed * one = bucket.load(); one != nullptr;) {
            const std::unique_ptr<const Listed> owned(one);
            one = one->next;
        }
    }
}

}  // namespace token_trie
