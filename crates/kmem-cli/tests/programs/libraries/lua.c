/* Memory by functions of Lua, and what a script takes. */

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

__attribute__((noipa)) static void by_userdata(lua_State *state)
{
	lua_createtable(state, 1000, 0);
	for (int i = 1; i <= 1000; i++) {
		lua_newuserdatauv(state, 500, 0);
		lua_rawseti(state, -2, i);
	}
}

__attribute__((noipa)) static void by_text(lua_State *state)
{
	char text[300] = { 0 };

	lua_createtable(state, 900, 0);
	for (int i = 1; i <= 900; i++) {
		text[i % 300]++;
		lua_pushlstring(state, text, sizeof(text));
		lua_rawseti(state, -2, i);
	}
}

__attribute__((noipa)) static void by_table(lua_State *state)
{
	lua_createtable(state, 800, 0);
	for (int i = 1; i <= 800; i++) {
		lua_createtable(state, 20, 0);
		lua_rawseti(state, -2, i);
	}
}

int main(void)
{
	lua_State *state = luaL_newstate();

	luaL_openlibs(state);
	lua_gc(state, LUA_GCSTOP);
	by_userdata(state);
	by_text(state);
	by_table(state);
	return luaL_dostring(state, "t = {} for i = 1, 5000 do t[i] = {name = 'name ' .. i} end");
}
