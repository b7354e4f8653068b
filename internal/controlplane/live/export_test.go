package live

import "time"

// Hurry has a hub do in moments what takes it seconds.
func (h *Hub) Hurry(recheck, keepAlive, write time.Duration) {
	h.timing.recheck, h.timing.keepAlive, h.timing.write = recheck, keepAlive, write
}

// Deaf reports whether the hub hears nothing.
func (h *Hub) Deaf() bool { return h.deaf.Load() }

// Open returns how many streams are open, and how many bytes of logs are kept.
func (h *Hub) Open() (streams, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.feeds {
		f.mu.Lock()
		bytes += f.window.bytes
		f.mu.Unlock()
	}
	return h.total, bytes
}
