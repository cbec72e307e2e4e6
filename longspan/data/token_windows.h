// Windows of a long text whose tokens are to be foretold: each by those before it, or
// some that were hidden by all others.

#pragma once

#include <memory>

#include "longspan/data/dataset.h"
#include "longspan/data/token_list.h"

namespace longspan {

// A dataset that is cut from a text, of which it knows the size.
class TextDataset : public Dataset {
 public:
  // Of what is asked; 0: not known, or not told by its tokens.
  virtual int64_t words() const = 0;
  virtual int64_t bytes() const = 0;
  // Of its tokens, that stand for words or pieces that have none.
  virtual double unknown_share() const = 0;
  // Whether windows share tokens.
  virtual bool overlaps() const { return false; }
  // Whether a token sees its own document only.
  virtual bool apart() const = 0;
};

struct TokenText {
  TokenList tokens = {};
  int64_t words = 0, bytes = 0;  // 0: not known, or not told by the tokens
  int64_t unknown = 0;           // tokens
};

struct WindowOptions {
  int64_t longest = 1024;  // tokens of a window
  // So many tokens of a window are the end of the one before, of which nothing is
  // asked; less than `longest`.
  int64_t context = 0;
  int32_t end_of_text = 0;  // stands between documents, and before the text;
                            // other tokens are less
  bool apart = false;       // a document is a segment of its own
};

// Every token of the text is asked exactly once, the first one after end_of_text.
std::shared_ptr<const TextDataset> next_token_windows(const TokenText& text,
                                                      const WindowOptions& options);

struct MaskOptions {
  int32_t mask = 0;      // stands for a hidden token
  int32_t ordinary = 0;  // ids 1 .. ordinary - 1 are those of text
  double share = 0.15;   // of the tokens is hidden, one at least
  bool pairs = false;    // a window is two texts, the second going on with the first
};

// Hidden tokens as Devlin et al. 2019, arXiv:1810.04805: 80 % are the mask, 10 % any
// token, 10 % stay. What is hidden is a function of BatchOptions.key and the number of
// the window. A window is `text end_of_text`, in pairs `text end_of_text text
// end_of_text`, of at most options.longest tokens.
std::shared_ptr<const TextDataset> masked_windows(const TokenText& text,
                                                  const WindowOptions& options,
                                                  const MaskOptions& masks);

}  // namespace longspan
