#pragma once
/// Symbol visibility: everything is hidden except what carries MH_API.

#define MH_API __attribute__((visibility("default")))
