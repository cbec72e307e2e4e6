#include <gtest/gtest.h>

#include "longspan/base/memory.h"

int main(int count, char** words) {
  ::testing::InitGoogleTest(&count, words);
  longspan::reuse_memory();
  return RUN_ALL_TESTS();
}
