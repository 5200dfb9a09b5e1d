"""HTTP/1.1 over asyncio and httptools: connections, exchanges, and the application behind them."""
