package console

// entry is one of the menu's; Key is the letter after "g" that goes there.
type entry struct {
	Nav, Title, Path, Key string
	Apart                 bool // begins a group
}

var menu = []entry{
	{Nav: "home", Title: "Home", Path: "/", Key: "h"},
	{Nav: "deploy", Title: "Deploy", Path: "/deploy", Key: "d"},
	{Nav: "provisions", Title: "Provisions", Path: "/provisions", Key: "p", Apart: true},
	{Nav: "workspaces", Title: "Workspaces", Path: "/workspaces", Key: "w"},
	{Nav: "clusters", Title: "Clusters", Path: "/clusters", Key: "c"},
	{Nav: "templates", Title: "Templates", Path: "/templates", Key: "t"},
	{Nav: "notifications", Title: "Notifications", Path: "/notifications", Key: "n", Apart: true},
	{Nav: "members", Title: "Members", Path: "/members", Key: "m"},
	{Nav: "audit", Title: "Audit", Path: "/audit", Key: "a"},
	{Nav: "account", Title: "Account", Path: "/account", Key: "s"},
}
