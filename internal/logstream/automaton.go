package logstream

// automaton finds all of a set of patterns in one pass (Aho and Corasick,
// 1975). Nodes are the prefixes of the patterns; node 0 is the empty one.
// Children are lists rather than tables of 256: a secret may be a whole file,
// and below the root nearly every node has one child.
type automaton struct {
	nodes []node
	root  [256]int32 // the children of node 0, which most bytes of a log meet
}

type node struct {
	child, sibling int32 // 0: none
	fail           int32 // the node of the longest proper suffix that is a prefix too
	depth          int32 // the length of the prefix
	match          int32 // the length of the longest pattern that ends here; 0: none
	b              byte  // the last byte of the prefix
}

func newAutomaton(patterns []string) *automaton {
	a := &automaton{nodes: make([]node, 1)}
	for _, p := range patterns {
		a.insert(p)
	}
	a.link()
	return a
}

func (a *automaton) insert(pattern string) {
	at := int32(0)
	for i := range len(pattern) {
		b := pattern[i]
		next := a.child(at, b)
		if next == 0 {
			next = int32(len(a.nodes))
			a.nodes = append(a.nodes, node{b: b, depth: int32(i + 1), sibling: a.nodes[at].child})
			a.nodes[at].child = next
		}
		at = next
	}
	a.nodes[at].match = int32(len(pattern))
}

func (a *automaton) child(at int32, b byte) int32 {
	next := a.nodes[at].child
	for next != 0 && a.nodes[next].b != b {
		next = a.nodes[next].sibling
	}
	return next
}

// link sets the fail links, breadth first: a node's link lies nearer the root
// than the node.
func (a *automaton) link() {
	var queue []int32
	for next := a.nodes[0].child; next != 0; next = a.nodes[next].sibling {
		a.root[a.nodes[next].b] = next
		queue = append(queue, next)
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for next := a.nodes[at].child; next != 0; next = a.nodes[next].sibling {
			n := &a.nodes[next]
			n.fail = a.step(a.nodes[at].fail, n.b)
			n.match = max(n.match, a.nodes[n.fail].match)
			queue = append(queue, next)
		}
	}
}

// step returns the node of the longest prefix that the text ends with after
// one more byte.
func (a *automaton) step(at int32, b byte) int32 {
	for at != 0 {
		if next := a.child(at, b); next != 0 {
			return next
		}
		at = a.nodes[at].fail
	}
	return a.root[b]
}
