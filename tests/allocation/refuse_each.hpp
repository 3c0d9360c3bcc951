#pragma once

#include <functional>

namespace headwater::allocation {

/// Runs `read` with one allocation after another refused, until none is: std::bad_alloc or an Error out_of_memory each
/// time, and nothing leaked; failures are GoogleTest's. `read` leaves nothing behind when it returns. Returns how many
/// were refused.
int refuse_each(const std::function<void()>& read);

}  // namespace headwater::allocation
