"""gfx10, gfx11, gfx12: Radeon RX and PRO, and the graphics of Ryzen."""
