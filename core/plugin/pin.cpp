#include "megahost/plugin.hpp"

const char MH_PIN = 1;
