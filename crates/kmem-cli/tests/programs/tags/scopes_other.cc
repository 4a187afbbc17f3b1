#include "scopes.h"

void other()
{
	inlined();
	Member().member();
}
