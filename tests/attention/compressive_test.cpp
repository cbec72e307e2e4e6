#include "longspan/attention/mechanism.h"
