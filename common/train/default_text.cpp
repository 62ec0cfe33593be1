// The suite's own lesson pages, built into every program as training text.
#include <string_view>

#include "common/train/dataset.h"

// The Makefile joins the pages into this file; the assembler takes it as it is.
asm(".section .rodata\n"
    ".global ref5d_default_text\n"
    ".global ref5d_default_text_end\n"
    "ref5d_default_text:\n"
    ".incbin \"" REF5D_DEFAULT_TEXT
    "\"\n"
    "ref5d_default_text_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" const char ref5d_default_text[], ref5d_default_text_end[];

namespace ref5d {

std::string_view default_text() {
  return {ref5d_default_text, static_cast<std::size_t>(ref5d_default_text_end - ref5d_default_text)};
}

}  // namespace ref5d
