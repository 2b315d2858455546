#include "checked.h"
