// Before the first paint: the theme that was chosen here, else the system's.
document.documentElement.dataset.theme = localStorage.getItem('grapevine-theme') || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')
