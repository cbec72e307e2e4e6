// What `longspan data NAME` says of data that this program cannot make.

#pragma once

#include <cstdint>
#include <span>

namespace longspan::cli {

struct OfficialFile {
  const char* name;
  uint32_t crc32c;
};

// Those whose MD5 the text below names.
inline constexpr OfficialFile kCifarFiles[] = {{"data_batch_1.bin", 0x73ec3b6c},
                                               {"test_batch.bin", 0x19590d6c}};

struct Origin {
  const char* task;     // the name of the task, and of the verb
  const char* summary;  // a line
  const char* text;     // where the files come from and how to train on them
  int64_t examples;     // in the official files
  std::span<const OfficialFile> files = {};  // whose checksum is known here
};

inline constexpr Origin kOrigins[] = {
    {"imdb", "film reviews, the Text task of the Long Range Arena",
     "Large Movie Review Dataset (Maas et al. 2011): 25,000 reviews to train on and "
     "25,000 to judge by.\n"
     "\n"
     "  the official archive, 80 MB, from "
     "https://ai.stanford.edu/~amaas/data/sentiment/\n"
     "    aclImdb_v1.tar.gz, MD5 7c2ac02c03563afcf9b574c7e56c153a\n"
     "    tar xzf aclImdb_v1.tar.gz      gives aclImdb/{train,test}/{neg,pos}/*.txt\n"
     "  or two tables imdb_train.tsv and imdb_test.tsv, which may be packed (.xz, "
     ".gz):\n"
     "    label (0 or 1), rating, number and text between tabs, without header\n"
     "\n"
     "  longspan data imdb --data DIR    checks them\n"
     "  longspan train -c configs/lra/imdb/dense.yaml --data DIR --out RUN\n",
     50000},
    {"retrieval", "pairs of papers, the Retrieval task of the Long Range Arena",
     "Do two papers cite one another? Pairs of the ACL Anthology Network (Radev et al. "
     "2013) as\nthe Long Range Arena released them: 147,086 to train on, 18,090 to "
     "choose "
     "by, 17,437 to\njudge by.\n"
     "\n"
     "  the official archive, 7.7 GB, from\n"
     "    https://storage.googleapis.com/long-range-arena/lra_release.gz (no checksum "
     "of "
     "it is\n"
     "    published: compare the numbers of pairs)\n"
     "    tar xzf lra_release.gz         gives lra_release/lra_release/tsv_data/\n"
     "                                   new_aan_pairs.{train,eval,test}.tsv\n"
     "  or pairs_{train,valid,test}.tsv (label and two names between tabs) with "
     "docs.tsv\n"
     "    (name and text), which may be packed (.xz, .gz): other pairs, other numbers\n"
     "\n"
     "  longspan data retrieval --data DIR    checks them\n"
     "  longspan train -c configs/lra/retrieval/dense.yaml --data DIR --out RUN\n",
     147086 + 18090 + 17437},
    {"cifar10", "images, the Image task of the Long Range Arena",
     "CIFAR-10 (Krizhevsky 2009), made grey: 50,000 images of 32 x 32 to train on and "
     "10,000 to judge by.\n"
     "\n"
     "  the official archive, \"binary version\", 162 MB, from\n"
     "    https://www.cs.toronto.edu/~kriz/cifar.html\n"
     "    cifar-10-binary.tar.gz, MD5 c32a1d4ab5d03f1284b67883e8d87530\n"
     "    tar xzf cifar-10-binary.tar.gz gives "
     "cifar-10-batches-bin/data_batch_{1..5}.bin\n"
     "                                   and test_batch.bin\n"
     "    data_batch_1.bin has the MD5 5dd7e06a14cb22eb9f671a540d1b7c25,\n"
     "    test_batch.bin 803d5f7f4d78ea53de84dbe85f74fb6d\n"
     "  a batch may be packed (.xz, .gz), or grey already: NAME_gray.bin, records of "
     "a\n"
     "  label and 1,024 pixels\n"
     "\n"
     "  longspan data cifar10 --data DIR    checks them\n"
     "  longspan train -c configs/lra/cifar10/dense.yaml --data DIR --out RUN\n",
     60000, kCifarFiles},
};

}  // namespace longspan::cli
